"""Every public name of ``replicate`` with FSDP2 is drawn, or excused with a reason."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from streams import Streams
from surface import Table, names_of_class, names_of_function
from torch.distributed.fsdp import FSDPModule

TABLE = Table.load("replicate")
_replicate = importlib.import_module("torch.distributed._composable.replicate_with_fsdp")


def public() -> Iterator[str]:
    """The function, and all that its modules inherit."""
    yield "replicate"
    yield from names_of_function("replicate", _replicate.replicate)
    yield from names_of_class(_replicate.ReplicateModule, constructor=False)
    for name in names_of_class(FSDPModule, constructor=False):
        yield name.replace("FSDPModule", "ReplicateModule")


def test_every_name_is_drawn_or_excused() -> None:
    assert TABLE.faults(public()) == []


def test_what_is_drawn_is_drawn(streams: Streams) -> None:
    assert TABLE.unreached(streams) == []
