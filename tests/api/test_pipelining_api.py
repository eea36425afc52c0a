"""Every public name of ``torch.distributed.pipelining`` in this torch is drawn, or excused
with a reason.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator

import pytest
from streams import Streams
from surface import Table, names_of_class, names_of_function, names_of_values
from torch.distributed import pipelining
from torch.distributed.pipelining import microbatch, schedules, stage

TABLE = Table.load("pipelining")


def public_names() -> list[str]:
    """What its modules export, and what classes have from bases of the package, which are named
    after these.
    """
    exported = (
        getattr(module, name)
        for module in (pipelining, schedules, stage, microbatch)
        for name in module.__all__
    )
    return sorted({name for thing in exported for name in _names_of(thing)})


def _names_of(thing: object) -> Iterator[str]:
    assert callable(thing)
    yield thing.__name__
    if not isinstance(thing, type):
        yield from names_of_function(thing.__name__, thing)
        return
    if issubclass(thing, enum.Enum) or dataclasses.is_dataclass(thing):
        yield from names_of_values(thing)
    for base in thing.__mro__:
        if base.__module__.startswith(pipelining.__name__):
            is_made = base is thing and not issubclass(thing, enum.Enum)
            yield from names_of_class(base, constructor=is_made)


def test_every_name_is_drawn_or_excused() -> None:
    assert not TABLE.faults(public_names())


def test_every_name_that_is_drawn_is_drawn(streams: Streams) -> None:
    assert not TABLE.unreached(streams)


@pytest.mark.parametrize("name", ["_PipelineSchedule.an_option", "PipelineStage(an_argument)"])
def test_a_name_that_a_new_release_brings_is_a_fault(name: str) -> None:
    assert TABLE.faults([*public_names(), name]) == [
        f"{name}: not in the table; draw it, or excuse it with a reason"
    ]
