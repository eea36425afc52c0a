"""Does a case still show a flaky finding often enough? A sequential probability ratio test says
so.

A. Wald, Sequential Tests of Statistical Hypotheses, Annals of Mathematical Statistics 16 (1945),
117-186: no other test of two rates with these error probabilities needs fewer runs on average.
"""

from __future__ import annotations

import math

ERROR = 0.1
"""The probability of taking one of the two rates for the other."""
MAX_RUNS = 30
"""The test ends then, with the likelier of the two rates."""


class RateTest:
    """Tells whether a finding shows at ``rate``, or at half of it or less; ``rate`` is between 0
    and 1.

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
