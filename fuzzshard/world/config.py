"""How a world is set up. No torch import."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from fuzzshard.errors import UsageError

SAMPLED_COVERAGE = 1 if sys.version_info >= (3, 12) else 20
"""A ``coverage`` that costs a campaign little; without ``sys.monitoring`` a traced case takes 2.5
times as long.
"""


def split_address(text: str) -> tuple[str, int]:
    """The address and the port of ``ADDRESS:PORT``; raises :class:`UsageError` for another
    text.
    """
    address, _, port = text.rpartition(":")
    if not address or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise UsageError(f"{text} is not ADDRESS:PORT", "write it like 10.0.0.2:29400")
    return address.removeprefix("[").removesuffix("]"), int(port)


def check_hosts(hosts: Sequence[str], secret_file: Path | None) -> None:
    """Raise :class:`UsageError` for other nodes of a world that cannot be."""
    for host in hosts:
        split_address(host)
    if len(set(hosts)) < len(hosts):
        raise UsageError("--hosts names a node twice", "name each node once")
    if hosts and secret_file is None:
        raise UsageError(
            "--hosts needs the secret of fuzzshard host", "give its file with --secret-file"
        )


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

    A world lies on this node and on those of ``hosts``, the addresses of
    :mod:`fuzzshard.world.host` there, which know the secret in ``secret_file``; each has as many
    ranks, in order. ``addresses`` are those at which the nodes reach each other, in the same
    order; they are known once there is a connection. Raises :class:`UsageError` for a number of
    ranks that nodes cannot share equally.

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
    hosts: tuple[str, ...] = ()
    secret_file: str = ""
    addresses: tuple[str, ...] = ()

    @property
    def live_ranks(self) -> int:
        """How many ranks are processes."""
        return 1 if self.screens else self.size

    @property
    def ranks_per_node(self) -> int:
        """How many ranks each node has."""
        return self.size // (len(self.hosts) + 1)

    def with_ranks(self, size: int) -> WorldConfig:
        """The same for a world of ``size`` ranks, or of some more that nodes share equally."""
        num_nodes = len(self.hosts) + 1
        return dataclasses.replace(self, size=-(-size // num_nodes) * num_nodes)

    def node_of(self, rank: int) -> int:
        """The node of a rank; 0 is this one."""
        return rank // self.ranks_per_node if self.hosts else 0

    def local_rank(self, rank: int) -> int:
        """The place of a rank among those of its node."""
        return rank % self.ranks_per_node

    def device_of(self, rank: int) -> int:
        """The CUDA device of a rank on its node."""
        local = self.local_rank(rank)
        return self.devices[local % len(self.devices)] if self.devices else local

    def host_of(self, rank: int) -> int:
        """Which host of its node NCCL takes a rank to run on: ranks of one host have a device
        each.
        """
        return self.local_rank(rank) // len(self.devices) if self.devices else 0

    @property
    def ranks_per_device(self) -> int:
        """The most ranks that share a CUDA device."""
        return self.host_of(self.ranks_per_node - 1) + 1

    def __post_init__(self) -> None:
        if self.size % (len(self.hosts) + 1):
            raise UsageError(
                f"{len(self.hosts) + 1} nodes cannot share a world of {self.size} ranks equally",
                f"use a --world-size that is a multiple of {len(self.hosts) + 1}",
            )
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
