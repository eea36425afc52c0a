"""What a campaign works with: worlds, a stream of cases, scripts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Protocol

from fuzzshard.campaign.drawing import drawn_cases
from fuzzshard.case.case import Case
from fuzzshard.corpus.scripts import ScriptCheck, ScriptRender
from fuzzshard.drafts.reduced import reduced_script
from fuzzshard.reproducer import check, scripts
from fuzzshard.runner import Runner
from fuzzshard.strategies.steered import Steered
from fuzzshard.world import World
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.spare import Spares


class WorldHandle(Runner, Protocol):
    """What a campaign needs of a :class:`fuzzshard.world.World`."""

    @property
    def pids(self) -> list[int]:
        """The processes of the live ranks."""

    def close(self) -> None:
        """Kills the ranks."""


class CaseStream(Protocol):
    """Draws the cases of a campaign; equal arguments give equal cases."""

    def __call__(
        self, seed: int, /, *, world_size: int, steered: Steered, cuda: bool
    ) -> Iterator[Case]:
        """Return an endless stream, or a finite one."""


@dataclasses.dataclass(frozen=True)
class Tools:
    """What a campaign works with; tests and benchmarks put others in their place."""

    make_world: Callable[[WorldConfig, Spares], WorldHandle] = World
    cases: CaseStream = drawn_cases
    render: ScriptRender = scripts
    check: ScriptCheck = check
    reduce: Callable[..., str] = reduced_script


TOOLS = Tools()
"""Those of ``fuzzshard run``."""
