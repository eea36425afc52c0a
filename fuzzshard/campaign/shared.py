"""What the worlds of a campaign have in common, and what the campaign needs of each of them."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from fuzzshard.campaign.control import Control
from fuzzshard.campaign.drawing import Prefetch, drawn_cases
from fuzzshard.campaign.keep import Keeper
from fuzzshard.campaign.known import Found, Registry
from fuzzshard.campaign.options import CONFIRM_RUNS
from fuzzshard.campaign.tally import Tally
from fuzzshard.case.case import Case
from fuzzshard.corpus.scripts import ScriptCheck, ScriptRender
from fuzzshard.reproducer import check, scripts
from fuzzshard.runner import Runner, StartWorlds
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


@dataclasses.dataclass(frozen=True)
class Shared:
    """What the worlds of a campaign have in common; every part may be used from any thread.

    ``unfinished`` is what earlier sessions found and did not get done, ``returned`` what waited
    for another node. Torch has ``mends``, with ``stock_too`` in three cases of four.
    """

    cases: Prefetch
    control: Control
    tally: Tally
    registry: Registry
    keeper: Keeper
    unfinished: deque[Found] = dataclasses.field(default_factory=deque)
    returned: deque[Found] = dataclasses.field(default_factory=deque)
    mends: tuple[str, ...] = ()
    stock_too: bool = True
    confirm: int = CONFIRM_RUNS
    shrinking: bool = True
    max_findings: int | None = None
    on_cpu: StartWorlds | None = None


class CaseStream(Protocol):
    """Draws the cases of a campaign; equal arguments give equal cases."""

    def __call__(
        self, seed: int, /, *, world_size: int, steered: Steered, cuda: bool
    ) -> Iterator[Case]:
        """An endless stream, or a finite one."""


@dataclasses.dataclass(frozen=True)
class Tools:
    """What a campaign works with; tests and benchmarks put others in their place."""

    make_world: Callable[[WorldConfig, Spares], WorldHandle] = World
    cases: CaseStream = drawn_cases
    render: ScriptRender = scripts
    check: ScriptCheck = check


TOOLS = Tools()
"""Those of ``fuzzshard run``."""
