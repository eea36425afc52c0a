"""Paths without what belongs to one machine: entries travel to other people's."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from msgspec.structs import replace

from fuzzshard.verdict import Finding

_FRAME = re.compile(r'(?<=File ")/[^"\n]+(?=")|(?<= from )/[^":\n]+(?=:\d+ in \w+")')
"""The file of a frame, as tracebacks and faulthandler write it; of a traced graph, what it was
traced by.
"""
_INSTALLED = re.compile(r".*/(?:(?:site|dist)-packages|lib/python3\.\d+t?)/")


def portable_text(text: str) -> str:
    """Return a stack whose frames say ``torch/distributed/...``, wherever that is installed."""
    return _FRAME.sub(lambda frame: _module_path(frame[0]), text)


def portable_stacks(stacks: Mapping[str, str]) -> dict[str, str]:
    """Return the stack of each rank, made portable."""
    return {rank: portable_text(text) for rank, text in stacks.items()}


def portable_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with such stacks: messages of Dynamo and checkpointing quote where an
    operation comes from.
    """
    return tuple(
        replace(finding, observed=portable_text(finding.observed)) for finding in findings
    )


def _module_path(path: str) -> str:
    """``path`` below the folder that Python imports it from; the name of a file that it does not
    import.
    """
    if installed := _INSTALLED.match(path):
        return path[installed.end() :]
    for home in _homes():
        if path.startswith(home):
            return path.removeprefix(home)
    return Path(path).name


@functools.cache
def _homes() -> tuple[str, ...]:
    """Where packages lie that are not installed in the usual place, the innermost first.

    An editable build of torch need not be on ``sys.path``. Finding a package does not import it.
    """
    specs = [find_spec(name) for name in ("fuzzshard", "torch")]
    packages = [Path(spec.origin).parents[1] for spec in specs if spec is not None and spec.origin]
    homes = {
        f"{home.resolve()}/" for home in (*packages, *(Path(entry) for entry in sys.path if entry))
    }
    return tuple(sorted(homes, key=len, reverse=True))


def portable_folder(entry: Path) -> Path:
    """Return the folder of an entry as seen from here, or else from its corpus."""
    if not entry.is_absolute():
        return entry
    here = Path.cwd()
    return entry.relative_to(here) if entry.is_relative_to(here) else Path(*entry.parts[-2:])
