"""Errors that are documented contracts of an engine, one by one, each where it is announced.

A refusal is a prediction: of a case and an engine it says at which ops its documentation announces
the error. The error there makes the case REJECTED for that engine; the other engines are still
judged. The same text anywhere else is a finding, and so is an error that is certain and does not
come.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from fuzzshard.case.case import Case


class Due(NamedTuple):
    """An op at which an error is announced (-1: construction), and whether it is certain to
    come.
    """

    op: int
    certain: bool = True


@dataclasses.dataclass(frozen=True)
class Refusal:
    """One documented error of an engine: its type, a pattern of its text, and where it is
    announced.

    ``due`` says at which ops of a case. ``quote`` is what the documentation says, ``source`` where
    it does. ``doubt`` is why an error that is announced may not come. A ``UserWarning`` is made an
    error where it is due, and stays a warning elsewhere.
    """

    error: str
    pattern: str
    due: Callable[[Case, str], Iterator[Due]]
    quote: str
    source: str
    doubt: str = ""

    def says(self, error: BaseException) -> bool:
        """Return whether ``error`` is of the type, and has the text.

        Where Dynamo traces, what an operator raises is quoted by a ``TorchRuntimeError``.
        """
        is_of_type = type(error).__name__ in (self.error, f"Torch{self.error}")
        return is_of_type and re.search(self.pattern, str(error)) is not None


class Announcements:
    """Which of the ``refusals`` of an engine a case announces."""

    def __init__(self, case: Case, engine: str, refusals: Iterable[Refusal]) -> None:
        self._all = [(due, refusal) for refusal in refusals for due in refusal.due(case, engine)]

    def announces(self, error: BaseException, op: int) -> bool:
        """Return whether ``error``, raised by op ``op``, is a refusal that is announced there."""
        return any(due.op == op and refusal.says(error) for due, refusal in self._all)

    def warnings(self, op: int) -> list[str]:
        """Return the patterns of warnings that are to be errors of op ``op``."""
        due = (refusal for due, refusal in self._all if due.op == op)
        return [refusal.pattern for refusal in due if refusal.error == UserWarning.__name__]

    def overdue(self, op: int) -> tuple[Due, Refusal] | None:
        """Return the first refusal that had to come before op ``op`` began."""
        certain = [(due, refusal) for due, refusal in self._all if due.certain and due.op < op]
        return min(certain, key=lambda each: each[0].op, default=None)
