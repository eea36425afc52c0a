"""What the worlds of a campaign have in common, and what the campaign needs of each of them."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Protocol

from fuzzshard.campaign.control import Control
from fuzzshard.campaign.judge import CONFIRM_RUNS
from fuzzshard.campaign.keep import Keeper
from fuzzshard.campaign.known import Found, Registry
from fuzzshard.campaign.prefetch import Prefetch
from fuzzshard.campaign.tally import Tally
from fuzzshard.runner import Runner, StartWorlds


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
