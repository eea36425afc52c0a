"""The plots of a campaign over time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from fuzzshard.report.html.scale import duration, number, ticks, time_ticks
from fuzzshard.report.html.svg import Element, element, group, label, path, picture, tip
from fuzzshard.report.stages import counted
from fuzzshard.report.timeline import Histogram, Point, Timeline
from fuzzshard.verdict import Status

NARROW, WIDE = 400, 1160
HEIGHT = 230

STACKED = (
    Status.HANG,
    Status.CRASH,
    Status.DIVERGENCE,
    Status.INCONCLUSIVE,
    Status.INFRA,
    Status.REJECTED,
)
"""From bottom to top: what matters most stands on the axis."""


def coverage_plot(timeline: Timeline, width: float = WIDE) -> Markup:
    """Features seen over time, with a mark where each finding was made."""
    seen = timeline.features[-1][1]
    heights = ticks(seen)
    frame = Frame(width, HEIGHT + (80 if width == WIDE else 0), _span(timeline), heights[-1])
    nodes = timeline.features_by_node if len(timeline.features_by_node) > 1 else {}
    marks = [
        _mark(frame, timeline.features, mark.at, mark.title, mark.anchor)
        for mark in timeline.marks
    ]
    return picture(
        frame.width,
        frame.height,
        "Features over time",
        f"{number(seen)} features after {duration(timeline.seconds)}, "
        f"{counted(len(marks), 'finding')}",
        frame.axes(_times(frame), _numbers(heights)),
        *(_restart(frame, at) for at in timeline.restarts),
        element(
            "path",
            d=f"{_steps(frame, timeline.features)}V{frame.base:.1f}H{frame.left}Z",
            class_="area",
        ),
        *(
            element("path", tip(name), d=_steps(frame, curve), class_="node")
            for name, curve in nodes.items()
        ),
        element("path", d=_steps(frame, timeline.features), class_="curve"),
        *marks,
        class_="plot",
        role="group",
    )


def throughput_plot(timeline: Timeline) -> Markup:
    """Cases per second, in each bin; the last bin may be shorter than the others."""
    rates = [sum(counts.values()) / _length(timeline, i) for i, counts in enumerate(timeline.bins)]
    heights = ticks(max(rates, default=0.0))
    frame = Frame(NARROW, HEIGHT, _span(timeline), heights[-1])
    return picture(
        frame.width,
        frame.height,
        "Cases per second over time",
        f"between {number(min(rates, default=0))} and {number(max(rates, default=0))} cases per "
        "second",
        frame.axes(_times(frame), _numbers(heights)),
        *(_restart(frame, at) for at in timeline.restarts),
        *(
            _bar(frame, timeline, i, 0, rate, "bar", f"{number(rate)} cases per second")
            for i, rate in enumerate(rates)
        ),
        class_="plot",
    )


def verdicts_plot(timeline: Timeline) -> Markup:
    """The share of the cases that did not pass, by verdict, in each bin."""
    shares = [
        {status: counts.get(status, 0) / total for status in STACKED}
        for counts in timeline.bins
        if (total := sum(counts.values()) or 1)
    ]
    most = max((sum(share.values()) for share in shares), default=0.0)
    heights = ticks(max(most, 0.01))
    frame = Frame(NARROW, HEIGHT, _span(timeline), heights[-1])
    return picture(
        frame.width,
        frame.height,
        "Verdicts other than PASS over time",
        f"at most {most:.1%} of the cases in any interval did not pass",
        frame.axes(_times(frame), [(value, f"{value * 100:.3g} %") for value in heights]),
        *(_restart(frame, at) for at in timeline.restarts),
        *(bar for i, share in enumerate(shares) for bar in _stack(frame, timeline, i, share)),
        class_="plot",
    )


def durations_plot(histogram: Histogram) -> Markup:
    """How long cases took, on a logarithmic axis, with the median and the 95th percentile."""
    low, high = math.log10(histogram.edges[0]), math.log10(histogram.edges[-1])
    heights = ticks(max(histogram.counts))
    frame = Frame(NARROW, HEIGHT, high - low, heights[-1], top=44)
    at = [math.log10(edge) - low for edge in histogram.edges]
    bars = (
        element(
            "rect",
            tip(
                f"{counted(count, 'case')} took {duration(histogram.edges[i])} to "
                f"{duration(histogram.edges[i + 1])}"
            ),
            x=frame.x(at[i]) + 0.5,
            y=frame.y(count),
            width=max(frame.x(at[i + 1]) - frame.x(at[i]) - 1, 0.5),
            height=frame.base - frame.y(count),
            class_="bar",
        )
        for i, count in enumerate(histogram.counts)
        if count
    )
    quantiles = {"median": histogram.quantile(0.5), "95 %": histogram.quantile(0.95)}
    return picture(
        frame.width,
        frame.height,
        "Time of a case",
        ", ".join(f"{name} {duration(value)}" for name, value in quantiles.items()),
        frame.axes(_logarithmic(low, high), _numbers(heights)),
        *bars,
        *(
            _quantile(frame, math.log10(value) - low, f"{name} {duration(value)}", row)
            for row, (name, value) in enumerate(quantiles.items())
        ),
        class_="plot",
    )


def _span(timeline: Timeline) -> float:
    """What the horizontal axis holds; a campaign that has not run yet has an axis too."""
    return timeline.seconds or 1.0


def _times(frame: Frame) -> list[Tick]:
    return [
        (value, duration(value))
        for value in time_ticks(frame.x_most, 8 if frame.width == WIDE else 4)
    ]


def _logarithmic(low: float, high: float) -> list[Tick]:
    """Powers of ten from ``10 ** low`` to ``10 ** high``; where they are few, also twice and five
    times.
    """
    factors = (1, 2, 5) if high - low < 2 else (1,)
    values = (
        factor * 10.0**k
        for k in range(math.floor(low), math.floor(high) + 1)
        for factor in factors
    )
    places = ((math.log10(value) - low, duration(value)) for value in values)
    return [(place, text) for place, text in places if -1e-9 <= place <= high - low + 1e-9]


def _numbers(values: Sequence[float]) -> list[Tick]:
    return [(value, number(value)) for value in values]


def _steps(frame: Frame, points: Sequence[Point]) -> str:
    """A line that stays where it is until the next point."""
    first, *rest = points
    return f"M{frame.x(first[0]):.1f} {frame.y(first[1]):.1f}" + "".join(
        f"H{frame.x(x):.1f}V{frame.y(y):.1f}" for x, y in rest
    )


def _length(timeline: Timeline, index: int) -> float:
    """Of a bin, in seconds; of one that has only begun at least a tenth, so that its rate means
    something.
    """
    rest = timeline.seconds - index * timeline.bin_seconds
    return max(min(timeline.bin_seconds, rest), timeline.bin_seconds / 10)


def _bar(
    frame: Frame, timeline: Timeline, index: int, bottom: float, top: float, class_: str, what: str
) -> Element:
    begin = index * timeline.bin_seconds
    left, right = frame.x(begin), frame.x(min(begin + timeline.bin_seconds, _span(timeline)))
    gap = 1 if right - left > 4 else 0
    return element(
        "rect",
        tip(f"{what}, from {duration(begin)} on"),
        x=left + gap / 2,
        y=frame.y(top),
        width=max(right - left - gap, 0.5),
        height=frame.y(bottom) - frame.y(top),
        class_=class_,
    )


def _stack(
    frame: Frame, timeline: Timeline, index: int, share: dict[Status, float]
) -> Iterator[Element]:
    below = 0.0
    for status, part in share.items():
        if part:
            what = f"{status}: {timeline.bins[index][status]} cases, {part:.1%}"
            yield _bar(
                frame, timeline, index, below, below + part, f"verdict-{status.lower()}", what
            )
            below += part


def _restart(frame: Frame, at: float) -> Element:
    x = frame.x(at)
    line = element("line", x1=x, x2=x, y1=frame.top, y2=frame.base, class_="restart")
    line.append(tip(f"a session began at {duration(at)}"))
    return line


def _mark(frame: Frame, curve: Sequence[Point], at: float, title: str, anchor: str) -> Element:
    """A diamond on the curve that leads to the card of the finding."""
    x, y = frame.x(at), frame.y(max(height for time, height in curve if time <= at))
    diamond = path([(x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y)])
    diamond.set("d", diamond.get("d", "") + "Z")
    drop = element("line", x1=x, x2=x, y1=y + 6, y2=frame.base)
    return element(
        "a", tip(f"{title}, {duration(at)}"), drop, diamond, href=f"#{anchor}", class_="mark"
    )


def _quantile(frame: Frame, at: float, text: str, row: int) -> Element:
    x = frame.x(at)
    anchor = "end" if x > frame.width * 0.6 else "start"
    shift = -5 if anchor == "end" else 5
    return group(
        element("line", x1=x, x2=x, y1=6 + 15 * row, y2=frame.base),
        label(x + shift, 14 + 15 * row, text, text_anchor=anchor),
        class_="quantile",
    )


Tick = tuple[float, str]


@dataclasses.dataclass(frozen=True)
class Frame:
    """A plot of ``width`` by ``height`` px whose values go from 0 to ``x_most`` and ``y_most``."""

    width: float
    height: float
    x_most: float
    y_most: float
    left: float = 46
    right: float = 12
    top: float = 14
    bottom: float = 30

    def x(self, value: float) -> float:
        """Where ``value`` stands, from left to right."""
        return self.left + (self.width - self.left - self.right) * value / self.x_most

    def y(self, value: float) -> float:
        """Where ``value`` stands, from bottom to top."""
        return self.base - (self.base - self.top) * value / self.y_most

    @property
    def base(self) -> float:
        """Where the horizontal axis is."""
        return self.height - self.bottom

    def axes(self, x_ticks: Sequence[Tick], y_ticks: Sequence[Tick]) -> Element:
        """A line across for each tick of the vertical axis, a short one for each of the horizontal
        axis.
        """
        drawn = group(class_="axes", aria_hidden="true")
        for value, text in y_ticks:
            y = self.y(value)
            drawn.append(
                element(
                    "line", x1=self.left, x2=self.width - self.right, y1=y, y2=y, class_="grid"
                )
            )
            drawn.append(label(self.left - 7, y + 4, text, text_anchor="end"))
        for value, text in x_ticks:
            x = self.x(value)
            drawn.append(
                element("line", x1=x, x2=x, y1=self.base, y2=self.base + 4, class_="tick")
            )
            near_end = x > self.width - self.right - 20
            drawn.append(
                label(x, self.base + 18, text, text_anchor="end" if near_end else "middle")
            )
        return drawn
