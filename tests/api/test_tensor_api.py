"""Every public name of ``torch.distributed.tensor``, of its modules and of
``torch.distributed.device_mesh`` in this torch is drawn, or excused with a reason; and every
function of ``torch.nn.init`` for a DTensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from streams import Streams
from surface import Table, names_of_class, names_of_function
from torch.distributed import device_mesh, tensor
from torch.distributed.tensor import Partial, Placement, debug, experimental, parallel
from torch.nn import init

TABLE = Table.load("tensor")


def public_names() -> list[str]:
    """What the modules export; and what the placements are made of, which have no signatures."""
    exported = (
        getattr(module, name)
        for module in (tensor, parallel, experimental, debug, device_mesh)
        for name in module.__all__
    )
    placements = [f"Partial({operation})" for operation in Partial.ALL_REDUCE_OPS]
    placements += [f"Shard({dim})" for dim in ("dim", "negative dim")]
    drawn = [f"init.{name}" for name in init.__all__ if name.endswith("_")]
    return sorted(
        {*placements, *drawn, *(name for thing in exported for name in _names_of(thing))}
    )


def _names_of(thing: Any) -> Iterator[str]:
    yield thing.__name__
    if isinstance(thing, type) and issubclass(thing, Placement):
        yield from (
            f"{thing.__name__}.{name}"
            for name, value in vars(thing).items()
            if callable(getattr(thing, name)) and not name.startswith("_")
        )
    else:
        names = names_of_class(thing) if isinstance(thing, type) else _arguments(thing)
        yield from (name for name in names if "(_" not in name)


def _arguments(function: Any) -> Iterator[str]:
    return names_of_function(function.__name__, function)


def test_every_name_is_drawn_or_excused() -> None:
    assert TABLE.faults(public_names()) == []


def test_what_is_drawn_is_drawn(streams: Streams) -> None:
    assert TABLE.unreached(streams) == []


@pytest.mark.parametrize("name", ["DTensor.a_method", "distribute_module(an_argument)"])
def test_a_name_that_a_new_release_brings_is_a_fault(name: str) -> None:
    assert TABLE.faults([*public_names(), name]) == [
        f"{name}: not in the table; draw it, or excuse it with a reason"
    ]
