"""Every public name of ``DistributedDataParallel`` and ``replicate`` is drawn, or excused with a
reason.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from streams import Streams
from surface import Table, names_of_class, names_of_function
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

TABLE = Table.load("ddp")
_replicate = importlib.import_module("torch.distributed._composable.replicate")


def public() -> Iterator[str]:
    yield from names_of_class(DistributedDataParallel)
    yield from names_of_function("replicate", _replicate.replicate)
    yield from names_of_class(_replicate.DDP, constructor=False)
    yield from (f"default_hooks.{name}" for name in default_hooks.__all__)
    ways = ("within itself", "left by an error", "where ranks end first")
    yield from (f"DistributedDataParallel.no_sync({how})" for how in ways)


def test_every_name_is_drawn_or_excused() -> None:
    assert TABLE.faults(public()) == []


def test_what_is_drawn_is_drawn(streams: Streams) -> None:
    assert TABLE.undrawn(streams.each()) == []
