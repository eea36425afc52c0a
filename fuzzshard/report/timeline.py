"""What a campaign did over time, as numbers to be plotted.

Time is that of the campaign: seconds during which it ran, with its sessions one after another.
Several directories are several nodes that ran side by side, so their times are laid over each
other.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fuzzshard.journal.history import History
from fuzzshard.journal.schema import JOURNAL_FILE
from fuzzshard.report.node import CampaignNode, begin_times
from fuzzshard.report.seen_findings import SeenFinding

Point = tuple[float, float]

_BARS = 8
"""Of a histogram, for each power of ten."""
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
        """The time, in seconds, within which ``share`` of the cases ended; exact to the width of a
        bar.
        """
        totals = list(itertools.accumulate(self.counts))
        index = bisect.bisect_left(totals, share * totals[-1])
        return self.edges[index + 1]


@dataclasses.dataclass(frozen=True)
class Timeline:
    """The series of one report.

    ``bins[i]`` counts verdicts from ``i * bin_seconds`` on. ``features`` is the number of
    features seen by any node until then, ``features_by_node`` by each. At ``restarts`` a later
    session began.
    """

    seconds: float
    bin_seconds: float
    bins: Sequence[Mapping[str, int]]
    features: Sequence[Point]
    features_by_node: Mapping[str, Sequence[Point]]
    durations: Histogram | None
    marks: Sequence[Mark] = ()
    restarts: Sequence[float] = ()


def read_timeline(nodes: Sequence[CampaignNode], findings: Iterable[SeenFinding]) -> Timeline:
    """The series of ``nodes``; the journals count their cases, so that there may be millions."""
    nodes = [node for node in nodes if node.sessions]
    seconds = max((node.seconds for node in nodes), default=0.0)
    width = bin_width(seconds)
    bins = [Counter[str]() for _ in range(max(1, math.ceil(seconds / width)))]
    for node in nodes:
        with History(node.path / JOURNAL_FILE) as history:
            for index, status, count in _counts(history, node, width):
                bins[min(index, len(bins) - 1)][status] += count
    first: dict[str, float] = {}
    for node in nodes:
        for name, at in node.first_seen.items():
            first[name] = min(at, first.get(name, at))
    return Timeline(
        seconds=seconds,
        bin_seconds=width,
        bins=bins,
        features=growth(first.values(), seconds),
        features_by_node={
            str(node.path): growth(node.first_seen.values(), node.seconds) for node in nodes
        },
        durations=_durations(nodes),
        marks=[Mark(f.at, f.signature, f.anchor) for f in findings if f.confirmed],
        restarts=[at for node in nodes for at in begin_times(node.sessions).values() if at]
        if len(nodes) == 1
        else [],
    )


def _counts(history: History, node: CampaignNode, width: float) -> list[tuple[int, str, int]]:
    """(bin, status, number of cases) of one directory."""
    return [
        (index, status, count)
        for session, begin in begin_times(node.sessions).items()
        for index, status, count in history.rows(
            "SELECT CAST((? + began) / ? AS INTEGER) AS bin, status, count(*) FROM case_run "
            "WHERE session = ? AND status IS NOT NULL GROUP BY bin, status",
            begin,
            width,
            session,
        )
    ]


def _durations(nodes: Sequence[CampaignNode]) -> Histogram | None:
    """Bars of equal width on a logarithmic axis, eight for each power of ten."""
    counts: Counter[int] = Counter()
    for node in nodes:
        with History(node.path / JOURNAL_FILE) as history:
            times = history.rows("SELECT seconds FROM case_run WHERE seconds > 0")
            counts.update(math.floor(_BARS * math.log10(seconds)) for (seconds,) in times)
    if not counts:
        return None
    bars = range(min(counts), max(counts) + 1)
    return Histogram([10 ** (k / _BARS) for k in (*bars, bars[-1] + 1)], [counts[k] for k in bars])


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
