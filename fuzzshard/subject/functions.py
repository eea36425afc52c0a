"""The functions of a subject, imported by name on a rank."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import fuzzshard
from fuzzshard.subject.subject import Subject

STATEMENTS = "<statements"
"""What the name of the file of statements begins with that ranks execute."""

STEPS = str(Path(__file__).with_name("steps.py"))
"""The file of what ranks do as scripts do, in which user's code and torch run."""

NOT_THE_USERS = ("/torch/", "/fuzzshard/", "<frozen", STATEMENTS, "/importlib/")
"""Parts of the names of files that are no code of the user's."""

OURS = str(Path(fuzzshard.__file__).parent) + os.sep
"""What the names of our own files begin with."""

Function = Callable[..., Any]

P = ParamSpec("P")
T = TypeVar("T")


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
    from fuzzshard.subject.steps import load as imported  # it imports torch

    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise SubjectError(f"--{field}", f"{name!r} is no module:function or file.py:function")
    try:
        found: Function | None = imported(name)
    except Exception as error:
        if place.endswith(".py") and not Path(place).exists():
            raise SubjectError(place, "does not exist") from error
        raise SubjectError(place, f"cannot be imported: {summary(error)}") from error
    if not callable(found):
        raise SubjectError(place, f"has no function {attribute}")
    return found


def call(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Call what the user gave, or torch for it: what is raised below is the training's error."""
    return function(*arguments, **keywords)


def is_ours(error: BaseException) -> bool:
    """Return whether an exception is an error of fuzzshard's own.

    The innermost frame of ours tells. It is that of :func:`call` or of what scripts do, too, where
    the user's code raised, or torch that runs for it. Elsewhere we raised it ourselves, or torch
    did that we called to look at the training. What torch calls in the place of a function of its
    own, and what calls that, passes it on.
    """
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    for index, code in reversed([*enumerate(codes)]):
        if code is call.__code__ or code.co_filename.startswith((STATEMENTS, STEPS)):
            return False
        around = [other.co_filename for other in codes[max(0, index - 1) : index + 2 : 2]]
        passes = len(around) == 2 and all("/torch/" in file for file in around)
        if code.co_filename.startswith(OURS) and not passes:
            return True
    return False


@contextlib.contextmanager
def blaming(what: str, when: Callable[[], str] = str) -> Iterator[None]:
    """Make an exception of the user's code a :class:`SubjectError` that names the function, and
    says ``when`` it was called.
    """
    try:
        yield
    except SubjectError:
        raise
    except Exception as error:
        if is_ours(error):
            raise
        where = f"{what}, {when()}," if when() else what
        raise SubjectError(where, f"raised {summary(error)}") from error


def summary(error: BaseException) -> str:
    """Return the type of an error, the first line of its text, and the line of the user's that
    ran; then the same of what it was raised from, which libraries that import when asked hide so.
    """
    text = (str(error).strip().splitlines() or [""])[0]
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not any(part in f.filename for part in NOT_THE_USERS)]
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    cause = f", from {summary(error.__cause__)}" if error.__cause__ else ""
    return f"{type(error).__name__}: {text}{where}{cause}"
