"""Every public name of ``fully_shard`` in the installed torch is drawn, or excused with a
reason.
"""

from __future__ import annotations

import dataclasses

import pytest
from streams import Streams
from surface import Table, names_of_class, names_of_function, names_of_values
from torch.distributed import fsdp
from torch.distributed.fsdp import _fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_api

TABLE = Table.load("fully_shard")
FUNCTIONS = ("fully_shard", "register_fsdp_forward_method", "share_comm_ctx")


def public_names() -> list[str]:
    """What ``torch.distributed.fsdp`` has of ``fully_shard``, and the classes that users derive
    from.
    """
    names = [name for f in FUNCTIONS for name in names_of_function(f, getattr(fsdp, f))]
    names += list(FUNCTIONS)
    for exported in (*_fully_shard.__all__, "Comm", "AllGather", "ReduceScatter"):
        if exported in FUNCTIONS:
            continue
        cls = getattr(_fully_shard, exported, None) or getattr(_fsdp_api, exported)
        names += names_of_class(cls, constructor=False)
        names += names_of_values(cls) if dataclasses.is_dataclass(cls) else []
    return sorted(set(names))


def test_every_name_is_drawn_or_excused() -> None:
    assert not TABLE.faults(public_names())


def test_cases_have_the_features_of_every_name_that_is_drawn(streams: Streams) -> None:
    assert not TABLE.undrawn(streams.each())


@pytest.mark.parametrize(
    "name", ["FSDPModule.an_option_of_the_next_release", "fully_shard(an_argument)"]
)
def test_a_name_that_a_new_release_brings_is_a_fault(name: str) -> None:
    assert TABLE.faults([*public_names(), name]) == [
        f"{name}: not in the table; draw it, or excuse it with a reason"
    ]
