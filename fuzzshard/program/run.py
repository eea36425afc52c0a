"""Runs statements on a rank: the text that a script prints is the text that ran."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

from fuzzshard.program.helpers import SOURCES, called
from fuzzshard.program.imports import every_import, import_block

FILE = "<statements of fuzzshard>"
"""What tracebacks and code objects name as the file of statements."""

exec(every_import(), {})  # ranks are forked after this, and import nothing while others wait


@functools.lru_cache(maxsize=512)
def _compiled(text: str) -> tuple[list[CodeType], dict[str, Any]]:
    """Compile the imports that statements need, the functions, and themselves, and make the
    namespace that they always run in: Dynamo keeps what it compiles by code object, and looks its
    own names up in the namespace of the first call.
    """
    functions = "".join(SOURCES[name] for name in called(text, SOURCES))
    parts = (import_block(functions + text), functions, text)
    return [compile(part, FILE, "exec", dont_inherit=True) for part in parts], {}


def execute(lines: Sequence[str], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Run statements with these variables and return all that there are then.

    Functions that the statements define may live on in C++ code, where the garbage collector does
    not find them. They keep what is imported and what Dynamo calls ``__compiled_fn_0``, and no
    variable.
    """
    if not lines:
        return dict(variables)
    text = "\n".join(lines)
    (imports, functions, statements), namespace = _compiled(text)
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
    exec(imports, namespace)
    imported = set(namespace)
    exec(functions, namespace)
    namespace |= variables
    try:
        exec(statements, namespace)
        return dict(namespace)
    finally:
        for name in namespace.keys() - imported:
            if not name.startswith("__"):
                del namespace[name]
