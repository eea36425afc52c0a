"""Which points of torch's own Python a campaign has reached, on any of its worlds."""

from __future__ import annotations

import threading
from collections.abc import Iterable

Point = tuple[str, int, int]
"""A file below ``torch`` and two lines (:mod:`fuzzshard.training.torch_coverage`)."""


class Reached:
    """A set of points; may be used from any thread."""

    def __init__(self) -> None:
        self.points: set[Point] = set()
        self._lock = threading.Lock()

    def add(self, points: Iterable[Point]) -> set[Point]:
        """Adds points; those of them that are new."""
        with self._lock:
            new = set(points) - self.points
            self.points |= new
            return new
