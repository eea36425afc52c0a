"""How a world is set up. No torch import."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class WorldConfig:
    """The settings of one world: its number of ranks, their device, the files each rank imports first."""

    size: int
    device: Literal["cpu", "cuda"] = "cpu"
    preload: tuple[str, ...] = ()
