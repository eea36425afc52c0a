"""The functions of a subject, imported by name on a rank."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fuzzshard.subject.subject import Subject

NOT_THE_USERS = ("/torch/", "/fuzzshard/", "<frozen", "<statements", "/importlib/")
"""Parts of the names of files that are no code of the user's."""

Function = Callable[..., Any]


class SubjectError(Exception):
    """Something that the user gave cannot be used; ``what`` names it and the text says why."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what = what
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.what} {self.problem}"


def load(subject: Subject) -> dict[str, Function]:
    """Return the functions that a subject names, by what they are for."""
    return {field: _function(field, name) for field, name in subject.functions.items()}


def _function(field: str, name: str) -> Function:
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise SubjectError(f"--{field}", f"{name!r} is no module:function or file.py:function")
    try:
        module = _file(Path(place)) if place.endswith(".py") else _module(place)
    except SubjectError:
        raise
    except Exception as error:
        raise SubjectError(place, f"cannot be imported: {summary(error)}") from error
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise SubjectError(place, f"has no function {attribute}")
    function: Function = found
    return function


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise SubjectError(str(path), "is not a file")
    path = path.resolve()
    name = f"{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextlib.contextmanager
def blaming(what: str) -> Iterator[None]:
    """Make an exception of the user's code a :class:`SubjectError` that names the function."""
    try:
        yield
    except SubjectError:
        raise
    except Exception as error:
        raise SubjectError(what, f"raised {summary(error)}") from error


def summary(error: BaseException) -> str:
    """The type of an error, the first line of its text, and the line of the user's that ran."""
    text = (str(error).strip().splitlines() or [""])[0]
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not any(part in f.filename for part in NOT_THE_USERS)]
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {text}{where}"
