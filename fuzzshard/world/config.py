"""How a world is set up. No torch import."""

from __future__ import annotations

import dataclasses
import sys
from importlib.util import find_spec
from typing import Literal

from fuzzshard.errors import UsageError

SAMPLED_COVERAGE = 1 if sys.version_info >= (3, 12) else 20
"""A ``coverage`` that costs a campaign little; without ``sys.monitoring`` a traced case takes 2.5 times as
long.
"""


@dataclasses.dataclass(frozen=True)
class WorldConfig:
    """The settings of one world: its number of ranks, their device, the files each rank imports first.

    In one case of ``coverage`` (0: in none) ranks say which lines and branches of torch they reach. Raises
    :class:`UsageError` where nothing can tell them.
    """

    size: int
    device: Literal["cpu", "cuda"] = "cpu"
    preload: tuple[str, ...] = ()
    coverage: int = 0

    def __post_init__(self) -> None:
        if self.coverage and sys.version_info < (3, 12) and find_spec("coverage") is None:
            raise UsageError(
                "coverage of torch needs the coverage library before Python 3.12",
                "pip install 'fuzzshard[coverage]', or use --guidance features",
            )
