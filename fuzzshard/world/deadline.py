"""How long a case may take before it counts as hung, from how long cases took."""

from __future__ import annotations

FIRST_SECONDS = 30.0
"""For the first case of a fresh world: nothing is warm, and on CUDA communicators are built."""

LEAST_SECONDS = 4.0
MOST_SECONDS = 60.0
FACTOR = 25.0


class Deadline:
    """Keeps a slowly forgetting maximum of case times; the deadline is a multiple of it."""

    def __init__(self) -> None:
        self._slowest = 0.0

    def observe(self, seconds: float) -> None:
        """Takes the time of a case that ended by itself."""
        self._slowest = max(seconds, self._slowest * 0.98)

    def seconds(self, fresh: bool) -> float:
        """The deadline of the next case."""
        if not self._slowest:
            return FIRST_SECONDS
        calibrated = min(max(FACTOR * self._slowest, LEAST_SECONDS), MOST_SECONDS)
        return 2 * calibrated if fresh else calibrated
