"""The predicate of shrinking: which candidates show the finding, and the smallest one that
does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fuzzshard.case.case import Case
from fuzzshard.case.codec import encode
from fuzzshard.corpus.entry import Confirmation
from fuzzshard.shrink import ShrinkStep
from fuzzshard.verdict import Verdict


class Smallest:
    """Holds the smallest failing case, whatever ends the shrinking, and what each candidate
    showed.

    A finding that came back every time in ``confirmed`` has one run for each candidate. For one
    that did not, a candidate counts as failing when its rate is not below half the original's
    (:class:`RateTest`). ``run`` runs a candidate, ``shows`` says whether its verdict is the
    finding, ``on_smaller`` hears of every smaller failing case, and ``on_tried`` of every
    candidate.
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
        on_tried: Callable[[Smallest], None] = lambda best: None,
    ) -> None:
        self.case = case
        self.verdict = verdict
        self.evaluations = 0
        # What each candidate showed, and whether that is the finding.
        self.tried: dict[bytes, tuple[str, bool]] = {}
        self._showing: dict[bytes, Verdict] = {}
        self._rate = confirmed.reproduced / confirmed.runs
        self._run = run
        self._shows = shows
        self._on_smaller = on_smaller
        self._on_tried = on_tried

    def still_fails(self, candidate: Case) -> bool:
        """Return whether ``candidate`` shows the finding."""
        verdict, outcome, fails = (
            self._once(candidate) if self._rate == 1 else self._repeatedly(candidate)
        )
        key = encode(candidate)
        self.evaluations += 1
        self.tried[key] = outcome, fails
        if fails:
            self._showing[key] = verdict
        self._on_tried(self)
        return fails

    def take(self, progress: ShrinkStep) -> None:
        """Take a smaller case, which was tried and fails, as the reducer did."""
        self.case, self.verdict = progress.case, self._showing[encode(progress.case)]
        self._on_smaller(self)

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
    """Return a verdict in a word: the signature of a finding, the status of anything else."""
    return verdict.signature or str(verdict.status)


ERROR = 0.1
"""The probability of taking one of the two rates for the other."""
MAX_RUNS = 30
"""The test ends then, with the likelier of the two rates."""


class RateTest:
    """Tells whether a finding shows at ``rate``, or at half of it or less; ``rate`` is between 0
    and 1.

    It is a sequential probability ratio test: no other test of two rates with these error
    probabilities needs fewer runs on average (A. Wald, Sequential Tests of Statistical Hypotheses,
    Annals of Mathematical Statistics 16 (1945), 117-186).

    ``holds`` is None until enough runs were added, and then the answer.
    """

    def __init__(self, rate: float) -> None:
        self.runs = 0
        self.shown = 0
        self.holds: bool | None = None
        self._ratio = 0.0
        self._gain = math.log(2.0)
        self._loss = math.log((1 - rate) / (1 - rate / 2))
        self._limit = math.log((1 - ERROR) / ERROR)

    def add(self, *, shown: bool) -> None:
        """Takes one more run into account."""
        self.runs += 1
        self.shown += shown
        self._ratio += self._gain if shown else self._loss
        if self._ratio >= self._limit:
            self.holds = True
        elif self._ratio <= -self._limit:
            self.holds = False
        elif self.runs >= MAX_RUNS:
            self.holds = self._ratio > 0
