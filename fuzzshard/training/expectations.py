"""What a case expects of an engine: an error or a warning, at an op, on some ranks."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

from fuzzshard.analysis.schedule_state import follow
from fuzzshard.case.case import Case
from fuzzshard.case.options import Expect
from fuzzshard.engines.refusals import Announcements
from fuzzshard.engines.registry import engine_of
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.op import names_rank
from fuzzshard.parts.oracle import NOT_REFUSED
from fuzzshard.parts.oracles.expectation import FORWARD_ORDER, Expectation, Warned
from fuzzshard.verdict import Finding


class ErrorMissing(Exception):
    """The op that had to raise is over; the run ends there, as it does on ranks where it
    raised.
    """


class Watch:
    """Listens to the run of one engine on one rank, and compares what it hears with what is
    expected.

    Errors and warnings that the case expects, and refusals that the documentation of the engine
    announces.
    """

    def __init__(self, case: Case, engine: str, rank: int) -> None:
        expected = [expect for expect in case.expect if expect.engine == engine]
        self.case, self.engine, self.rank = case, engine, rank
        self.error = next(
            (e for e in expected if e.kind == "error" and names_rank(e.ranks, rank)), None
        )
        self.warnings = [expect for expect in expected if expect.kind == "warning"]
        self.announcements = Announcements(case, engine, engine_of(engine).refusals)
        self.op = -1
        self.raised = False
        self._heard: list[tuple[int, str]] = []
        self._log: list[warnings.WarningMessage] = []
        self._of_op = ExitStack()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hears every warning, also those that Python would only show once."""
        with warnings.catch_warnings(record=True) as log, self._of_op:
            warnings.simplefilter("always")
            self._log = log
            yield
            self._hear()

    def enter(self, op: int) -> None:
        """Begin the op at index ``op``. Raises :class:`ErrorMissing` where an earlier one had to
        raise.
        """
        self._hear()
        if (self.error is not None and op > self.error.op) or self.announcements.overdue(
            op
        ) is not None:
            raise ErrorMissing
        self.op = op
        self._of_op.close()
        self._of_op.enter_context(warnings.catch_warnings())
        for pattern in self.announcements.warnings(op):
            warnings.filterwarnings("error", f".*{pattern}")

    def expects(self, error: Exception) -> bool:
        """Return whether this is the expected error, at its op."""
        self._hear()
        expect = self.error
        self.raised = (
            expect is not None
            and self.op == expect.op
            and re.search(expect.pattern, str(error)) is not None
        )
        return self.raised

    def refuses(self, error: Exception) -> bool:
        """Return whether this is a refusal that is announced at the op that runs."""
        return self.announcements.announces(error, self.op)

    def not_refused(self) -> Finding | None:
        """Return a refusal that had to come and did not, once the run has ended."""
        overdue = None if self.error is not None else self.announcements.overdue(self.op + 1)
        if overdue is None:
            return None
        due, refusal = overdue
        return Finding(
            oracle=Expectation.name,
            engine=self.engine,
            observed="no error",
            expected=f"an error at op {due.op} that matches {refusal.pattern!r}: {refusal.source}",
            op=due.op,
            name=refusal.pattern,
            rank=self.rank,
            detail=NOT_REFUSED,
        )

    def findings(self, skipped: Collection[int]) -> list[Finding]:
        """Return what was expected and did not come, or came and was not expected.

        ``skipped`` are the backwards that had nothing to differentiate.
        """
        found = []
        if self.error is not None and not self.raised:
            found.append(self._finding(self.error.op, "no error", describe(self.error)))
        for pattern in dict.fromkeys(expect.pattern for expect in self.warnings):
            found += self._warned(pattern)
        if spec_of(self.engine).has_units and keeps_forward_order(self.case, self.rank, skipped):
            found += self._forward_order()
        return found

    def _warned(self, pattern: str) -> Iterator[Finding]:
        """A warning is due exactly once at its op, on its ranks."""
        due = [
            e.op for e in self.warnings if e.pattern == pattern and names_rank(e.ranks, self.rank)
        ]
        came = [op for op, text in self._heard if re.search(pattern, text)]
        if sorted(due) != came:
            observed, expected = (
                f"warned at op {', '.join(map(str, ops))}" if ops else "no warning"
                for ops in (came, sorted(due))
            )
            op = min(set(due) ^ set(came), default=came[-1] if came else -1)
            yield self._finding(op, observed, f"{expected} that matches {pattern!r}")

    def _forward_order(self) -> Iterator[Finding]:
        for op, text in self._heard:
            if text.startswith(FORWARD_ORDER) and not any(
                re.search(e.pattern, text) for e in self.warnings
            ):
                expected = "no warning: every iteration runs the same units in the same order"
                yield self._finding(op, text, expected, oracle=Warned.name)

    def _finding(
        self, op: int, observed: str, expected: str, oracle: str = Expectation.name
    ) -> Finding:
        return Finding(
            oracle=oracle,
            engine=self.engine,
            observed=observed,
            expected=expected,
            op=op,
            rank=self.rank,
        )

    def _hear(self) -> None:
        """What was said since the last op began was said by that op."""
        self._heard += [(self.op, str(said.message)) for said in self._log[len(self._heard) :]]


def describe(expect: Expect) -> str:
    """Return an expected error, for a person."""
    return f"an error at op {expect.op} that matches {expect.pattern!r}"


def keeps_forward_order(case: Case, rank: int, skipped: Collection[int]) -> bool:
    """Return whether all iterations run the same units in the same order on this rank, as far as
    FSDP1 looks.

    It looks at forwards in training mode, and an iteration ends with a backward that
    differentiates something (torch/distributed/fsdp/_exec_order_utils.py, ``_check_order``).
    """
    iterations: list[list[dict[str, int]]] = [[]]
    for at in follow(case, rank):
        if at.op.call and at.training:
            iterations[-1].append({block: path for block, path in at.paths.items() if path})
        elif at.op.takes and at.index not in skipped:
            iterations.append([])
    return all(later == iterations[0][: len(later)] for later in iterations)
