"""What whoever runs cases needs of a world, or of what stands before one. No torch import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from fuzzshard.case.case import Case
from fuzzshard.verdict import Verdict


class Runner(Protocol):
    """Runs cases, as :class:`fuzzshard.world.World` does."""

    @property
    def info(self) -> Mapping[str, str]:
        """Of the ranks started last: the keys torch, python, device, backend and platform."""

    def run(
        self, case: Case, *, deadline: float | None = None, mends: tuple[str, ...] = ()
    ) -> Verdict:
        """Runs ``case`` on live ranks, up to ``deadline`` seconds, with torch that has
        ``mends``.
        """

    def restart(self) -> None:
        """Replaces the ranks by fresh ones."""


StartWorld = Callable[[int], AbstractContextManager[Runner]]
"""Gives a world of so many ranks, which lives until its context ends."""
StartWorlds = Callable[[int], AbstractContextManager[Sequence[Runner]]]
"""Gives the worlds, each of so many ranks, that live until its context ends."""
