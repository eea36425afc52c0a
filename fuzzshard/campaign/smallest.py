"""The predicate of shrinking: which candidates show the finding, and the smallest one that does."""

from __future__ import annotations

from collections.abc import Callable

from fuzzshard.campaign.sequential import RateTest
from fuzzshard.case.case import Case
from fuzzshard.case.codec import encode
from fuzzshard.case.order import size_order
from fuzzshard.corpus.entry import Confirmation
from fuzzshard.verdict import Verdict


class Smallest:
    """Holds the smallest failing case, whatever ends the shrinking, and what each candidate showed.

    A finding that came back every time in ``confirmed`` has one run for each candidate. For one that did not,
    a candidate counts as failing when its rate is not below half the original's (:class:`RateTest`).
    ``run`` runs a candidate, ``shows`` says whether its verdict is the finding, and ``on_smaller`` hears of
    every smaller failing case.
    """

    def __init__(
        self,
        case: Case,
        verdict: Verdict,
        confirmed: Confirmation,
        *,
        run: Callable[[Case], Verdict],
        shows: Callable[[Verdict], bool],
        on_smaller: Callable[[Smallest], None],
    ) -> None:
        self.case = case
        self.verdict = verdict
        self.evaluations = 0
        self.tried: dict[bytes, tuple[str, bool]] = {}
        self._rate = confirmed.reproduced / confirmed.runs
        self._run = run
        self._shows = shows
        self._on_smaller = on_smaller

    def still_fails(self, candidate: Case) -> bool:
        """Whether ``candidate`` shows the finding; the smallest one that does is kept."""
        verdict, fails = self.try_out(candidate)
        if fails and size_order(candidate) < size_order(self.case):
            self.case, self.verdict = candidate, verdict
            self._on_smaller(self)
        return fails

    def try_out(self, candidate: Case) -> tuple[Verdict, bool]:
        """A verdict of ``candidate``, and whether it shows the finding; ``tried`` remembers it."""
        self.evaluations += 1
        verdict, outcome, fails = self._once(candidate) if self._rate == 1 else self._repeatedly(candidate)
        self.tried[encode(candidate)] = outcome, fails
        return verdict, fails

    def _once(self, candidate: Case) -> tuple[Verdict, str, bool]:
        verdict = self._run(candidate)
        return verdict, outcome_text(verdict), self._shows(verdict)

    def _repeatedly(self, candidate: Case) -> tuple[Verdict, str, bool]:
        test = RateTest(self._rate)
        showing = other = None
        while test.holds is None:
            verdict = self._run(candidate)
            shown = self._shows(verdict)
            showing, other = (verdict, other) if shown else (showing, verdict)
            test.add(shown=shown)
        last = showing or other
        assert last is not None
        often = f" in {test.shown} of {test.runs} runs" if test.shown else ""
        return last, f"{outcome_text(last)}{often}", test.holds


def outcome_text(verdict: Verdict) -> str:
    """A verdict in a word: the signature of a finding, the status of anything else."""
    return verdict.signature or str(verdict.status)
