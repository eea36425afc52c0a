"""Every public name of ``FullyShardedDataParallel`` is drawn, or excused with a reason."""

from __future__ import annotations

from collections.abc import Iterator

from streams import Streams
from surface import Table, names_of_class, names_of_values
from torch.distributed.algorithms._comm_hooks import default_hooks
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)

TABLE = Table.load("fsdp1")


def public() -> Iterator[str]:
    yield from names_of_class(FullyShardedDataParallel)
    for values in (ShardingStrategy, BackwardPrefetch, CPUOffload, MixedPrecision):
        yield from names_of_values(values)
    hooks = (name for name in vars(default_hooks) if name.endswith("_hook") and name[0] != "_")
    yield from (f"default_hooks.{name}" for name in hooks)


def test_every_name_is_drawn_or_excused() -> None:
    assert TABLE.faults(public()) == []


def test_what_is_drawn_is_drawn(streams: Streams) -> None:
    assert TABLE.unreached(streams) == []
