"""Verdicts and entries that nothing has found, and a world that answers with them."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Any, Self

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.corpus.entry import Confirmation, CorpusEntry, make_entry
from fuzzshard.doctor import clean_case
from fuzzshard.verdict import Finding, Status, Verdict
from fuzzshard.world.config import WorldConfig

PASS = Verdict(status=Status.PASS)
TORCH = importlib.metadata.version("torch")
INFO = {"torch": "2.13.0", "device": "cpu", "backend": "gloo"}
ALWAYS = Confirmation(runs=3, reproduced=3)


def finding(oracle: str = "gradient", engine: str = "fully_shard", **more: Any) -> Finding:
    """A difference between a 1 and a 2."""
    return Finding(
        **{"oracle": oracle, "engine": engine, "observed": "1", "expected": "2", **more}
    )


def divergence(oracle: str = "gradient", engine: str = "fully_shard", **more: Any) -> Verdict:
    """The verdict on a case with one finding."""
    return Verdict(status=Status.DIVERGENCE, findings=(finding(oracle, engine, **more),))


DIVERGENCE = divergence()


def crash(detail: str, message: str, engine: str = "fully_shard") -> Verdict:
    """A crash in the function that ``detail`` names: ``"IndexError in pre_backward"``."""
    observed = f"{detail.partition(' ')[0]}: {message}"
    raised = finding("exception", engine, observed=observed, expected="", detail=detail)
    return Verdict(status=Status.CRASH, findings=(raised,))


def entry(
    case: Case | None = None,
    verdict: Verdict = DIVERGENCE,
    *,
    torch: str = INFO["torch"],
    backend: str = INFO["backend"],
    confirmed: Confirmation | None = None,
    **changes: Any,
) -> CorpusEntry:
    """What a corpus has of a finding; ``changes`` are other fields of it."""
    info = {"torch": torch, "backend": backend}
    made = make_entry(case or clean_case(2), verdict, info, confirmed=confirmed)
    return replace(made, **changes)


Answer = Verdict | BaseException | Callable[[Case], Verdict]


class FakeWorld:
    """Answers with the given verdicts in order, and with the last one again and again.

    Every case passes with the mend ``cured_by``. It notes what it is asked for.
    """

    def __init__(self, *answers: Answer, **info: str) -> None:
        self.answers = list(answers)
        self.config = WorldConfig(size=2)
        self.info = {**INFO, **info}
        self.cured_by = ""
        self.pids: list[int] = []
        self.sizes: list[int] = []
        self.cases: list[Case] = []
        self.deadlines: list[float | None] = []
        self.restarts = 0
        self.closed = 0

    @contextlib.contextmanager
    def start(self, size: int = 0) -> Iterator[list[Self]]:
        self.sizes.append(size)
        try:
            yield [self]
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(
        self, case: Case, *, deadline: float | None = None, mends: tuple[str, ...] = ()
    ) -> Verdict:
        self.cases.append(case)
        self.deadlines.append(deadline)
        if self.cured_by in mends:
            return PASS
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, Verdict) else answer(case)

    def with_ranks(self, size: int) -> Self:
        return self

    def check(self, case: Case) -> None:
        pass

    def restart(self) -> None:
        self.restarts += 1

    def close(self) -> None:
        self.closed += 1
