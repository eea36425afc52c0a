"""Errors that are documented contracts of an engine, one by one, each where it is announced.

A refusal is a prediction: of a case and an engine it says at which ops its documentation announces
the error. The error there makes the case REJECTED for that engine; the other engines are still
judged. The same text anywhere else is a finding, and so is an error that is certain and does not
come.
"""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.engines.refusal import Due, Refusal
from fuzzshard.engines.registry import ENGINES

REFUSALS: tuple[Refusal, ...] = tuple(
    dict.fromkeys(refusal for engine in ENGINES.values() for refusal in engine.refusals)
)
"""Those of all engines, some of which have the same."""


class Announcements:
    """The refusals that a case announces of an engine."""

    def __init__(self, case: Case, engine: str) -> None:
        self._all = [
            (due, refusal)
            for refusal in (ENGINES[engine].refusals if engine in ENGINES else ())
            for due in refusal.due(case, engine)
        ]

    def announces(self, error: BaseException, op: int) -> bool:
        """Whether ``error``, raised by op ``op``, is a refusal that is announced there."""
        return any(due.op == op and refusal.says(error) for due, refusal in self._all)

    def warnings(self, op: int) -> list[str]:
        """The patterns of warnings that are to be errors of op ``op``."""
        due = (refusal for due, refusal in self._all if due.op == op)
        return [refusal.pattern for refusal in due if refusal.error == UserWarning.__name__]

    def overdue(self, op: int) -> tuple[Due, Refusal] | None:
        """The first refusal that had to come before op ``op`` began."""
        certain = [(due, refusal) for due, refusal in self._all if due.certain and due.op < op]
        return min(certain, key=lambda each: each[0].op, default=None)
