"""How a world is set up. No torch import."""

from __future__ import annotations

import dataclasses
import sys
from importlib.util import find_spec
from typing import Literal

from fuzzshard.errors import UsageError

SAMPLED_COVERAGE = 1 if sys.version_info >= (3, 12) else 20
"""A ``coverage`` that costs a campaign little; without ``sys.monitoring`` a traced case takes 2.5
times as long.
"""


@dataclasses.dataclass(frozen=True)
class WorldConfig:
    """The settings of one world: its number of ranks, their device, the files each rank imports
    first.

    ``devices`` are the CUDA devices that ranks take in turn, numbered within
    ``CUDA_VISIBLE_DEVICES``; by default rank r has device r. In one case of ``coverage`` (0: in
    none) ranks say which lines and branches of torch they reach. Raises :class:`UsageError` where
    nothing can tell them, and for a device that is named twice.

    A world that ``screens`` has one live rank, the first or the last one of meshes of up to
    ``size`` ranks, and no peers: its process groups are torch's ``fake`` ones
    (:mod:`fuzzshard.world.screen`).

    ``instruments_off`` says which instruments earlier ranks have switched off (the text of
    :func:`fuzzshard.instruments.off_text`); None: ranks prove them when they start.
    """

    size: int
    device: Literal["cpu", "cuda"] = "cpu"
    preload: tuple[str, ...] = ()
    coverage: int = 0
    devices: tuple[int, ...] = ()
    screens: Literal["", "first", "last"] = ""
    instruments_off: str | None = None

    @property
    def live_ranks(self) -> int:
        """How many ranks are processes."""
        return 1 if self.screens else self.size

    def device_of(self, rank: int) -> int:
        """The CUDA device of a rank."""
        return self.devices[rank % len(self.devices)] if self.devices else rank

    def host_of(self, rank: int) -> int:
        """The host that NCCL takes a rank to run on: ranks of one host have a device each."""
        return rank // len(self.devices) if self.devices else 0

    @property
    def ranks_per_device(self) -> int:
        """The most ranks that share a CUDA device."""
        return self.host_of(self.size - 1) + 1

    def __post_init__(self) -> None:
        if len(set(self.devices)) < len(self.devices):
            raise UsageError(
                f"{self.devices} has a CUDA device twice",
                "name each once: several ranks share a device where there are fewer devices than "
                "ranks",
            )
        if self.coverage and sys.version_info < (3, 12) and find_spec("coverage") is None:
            raise UsageError(
                "coverage of torch needs the coverage library before Python 3.12",
                "pip install 'fuzzshard[coverage]', or use --guidance features",
            )
