"""Every public name of ``DistributedDataParallel`` and ``replicate`` is drawn, or excused with a
reason.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from streams import Streams
from surface import Table, names_of_class, names_of_function
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

TABLE = Table.load("ddp")
_replicate = importlib.import_module("torch.distributed._composable.replicate")


def public() -> Iterator[str]:
    yield from names_of_class(DistributedDataParallel)
    yield from names_of_function("replicate", _replicate.replicate)
    yield from names_of_class(_replicate.DDP, constructor=False)
    for hooks in (debugging_hooks, default_hooks, powerSGD_hook):
        module = hooks.__name__.rpartition(".")[2]
        yield from (f"{module}.{name}" for name in hooks.__all__)
    yield from (f"post_localSGD_hook.{n}" for n in ("PostLocalSGDState", "post_localSGD_hook"))
    ways = ("within itself", "left by an error", "where ranks end first")
    yield from (f"DistributedDataParallel.no_sync({how})" for how in ways)


def test_every_name_is_drawn_or_excused() -> None:
    assert TABLE.faults(public()) == []


def test_what_is_drawn_is_drawn(streams: Streams) -> None:
    assert TABLE.undrawn(streams.each()) == []
