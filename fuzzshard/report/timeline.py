"""What a campaign did over time, as numbers to be plotted.

Time is that of the campaign: seconds during which it ran, with its sessions one after another. Several
directories are several nodes that ran side by side, so their times are laid over each other.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

Point = tuple[float, float]

MOST_POINTS = 400
"""Of a curve; more cannot be told apart on a screen."""


@dataclasses.dataclass(frozen=True)
class Mark:
    """Something that happened at a time: a finding, with the anchor of its card."""

    at: float
    title: str
    anchor: str


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Cases by time: ``counts[i]`` took from ``edges[i]`` to ``edges[i + 1]`` seconds."""

    edges: Sequence[float]
    counts: Sequence[int]

    def quantile(self, share: float) -> float:
        """The time, in seconds, within which ``share`` of the cases ended; exact to the width of a bar."""
        totals = list(itertools.accumulate(self.counts))
        index = bisect.bisect_left(totals, share * totals[-1])
        return self.edges[index + 1]


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The series of one report.

    ``bins[i]`` counts verdicts from ``i * bin_seconds`` on. ``pairs`` is the number of pairs of features
    seen by any node until then, ``pairs_by_node`` by each. ``restarts`` are the times at which a later session began.
    """

    seconds: float
    bin_seconds: float
    bins: Sequence[Mapping[str, int]]
    pairs: Sequence[Point]
    pairs_by_node: Mapping[str, Sequence[Point]]
    durations: Histogram
    marks: Sequence[Mark] = ()
    restarts: Sequence[float] = ()


def growth(first_seen: Iterable[float], until: float) -> list[Point]:
    """How many things had been seen at which time, from the times when each was seen first."""
    times = sorted(first_seen)
    step = max(1, len(times) // MOST_POINTS)
    points = [(time, index + 1.0) for index, time in enumerate(times) if (index + 1) % step == 0]
    return [(0.0, 0.0), *points, (max(until, times[-1] if times else 0.0), float(len(times)))]


def bin_width(seconds: float, most: int = 60) -> float:
    """A round width for at most ``most`` bins, in seconds."""
    widths = (w * unit for unit in (1, 60, 3600, 86400) for w in (1, 2, 5, 10, 15, 30))
    return float(next((width for width in widths if width * most >= seconds), 30 * 86400))
