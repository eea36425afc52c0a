"""The frame of a plot: its axes with their ticks, and where a value stands in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fuzzshard.report.html.svg import Element, element, group, label

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
