"""How a world is set up. No torch import."""

from __future__ import annotations

import dataclasses
from typing import Literal

from fuzzshard.errors import UsageError


@dataclasses.dataclass(frozen=True)
class WorldConfig:
    """The settings of one world: its number of ranks, their device, the files each rank imports
    first.

    ``devices`` are the CUDA devices that ranks take in turn, numbered within
    ``CUDA_VISIBLE_DEVICES``; by default rank r has device r. Raises :class:`UsageError` for a
    device that is named twice.

    A world lies on this node and on ``nodes``, the ids of others (:mod:`fuzzshard.world.nodes`);
    each has as many ranks, in order. ``addresses`` are those at which the nodes reach each other,
    in the same order; they are known once there is a connection. Raises :class:`UsageError` for a
    number of ranks that nodes cannot share equally.

    ``instruments_off`` says which instruments earlier ranks have switched off (the text of
    :func:`fuzzshard.instruments.off_text`); None: ranks prove them when they start.

    Ranks of ``subjects`` train models of users' own alone: they need no mends and no instruments,
    which take a third of what it costs to start.

    ``nice`` is how far ranks on this node let other processes go first (setpriority(2)). They get
    it when a world takes them, so worlds of any have the same spare ranks.
    """

    size: int
    device: Literal["cpu", "cuda"] = "cpu"
    preload: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()
    instruments_off: str | None = None
    subjects: bool = False
    nodes: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    nice: int = dataclasses.field(default=0, compare=False)

    @property
    def ranks_per_node(self) -> int:
        """How many ranks each node has."""
        return self.size // (len(self.nodes) + 1)

    def node_of(self, rank: int) -> int:
        """Return the node of a rank; 0 is this one."""
        return rank // self.ranks_per_node if self.nodes else 0

    def local_rank(self, rank: int) -> int:
        """Return the place of a rank among those of its node."""
        return rank % self.ranks_per_node

    def device_of(self, rank: int) -> int:
        """Return the CUDA device of a rank on its node."""
        local = self.local_rank(rank)
        return self.devices[local % len(self.devices)] if self.devices else local

    def host_of(self, rank: int) -> int:
        """Return which host of its node NCCL takes a rank to run on: ranks of one host have a
        device each.
        """
        return self.local_rank(rank) // len(self.devices) if self.devices else 0

    @property
    def ranks_per_device(self) -> int:
        """The most ranks that share a CUDA device."""
        return self.host_of(self.ranks_per_node - 1) + 1

    def __post_init__(self) -> None:
        num_nodes = len(self.nodes) + 1
        if self.size % num_nodes:
            raise UsageError(
                f"{num_nodes} nodes cannot share a world of {self.size} ranks equally",
                f"use a --world-size that is a multiple of {num_nodes}",
            )
        if len(set(self.devices)) < len(self.devices):
            raise UsageError(
                f"{self.devices} has a CUDA device twice",
                "name each once: several ranks share a device where there are fewer devices than "
                "ranks",
            )
