"""Every public name of ``torch.distributed.checkpoint`` in this torch is drawn, or excused with a
reason.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from streams import Streams
from surface import Table, names_of_class, names_of_function, names_of_values
from torch.distributed import checkpoint

TABLE = Table.load("checkpoint")
CALLED = ("state_dict", "state_dict_saver", "state_dict_loader", "stateful", "staging")
"""Modules of functions that people call, and of classes whose methods they call or write."""
PLANNED = (
    *("api", "planner", "default_planner", "storage", "filesystem", "fsspec_filesystem"),
    *("hf_storage", "quantized_hf_storage", "metadata", "optimizer", "format_utils", "protocol"),
)
"""Those of planners and storages: ``save`` and ``load`` call their methods."""


def public() -> list[str]:
    """What they export, and the arguments of functions and constructors."""
    stems = [stem for stem in (*CALLED, *PLANNED) if find_spec(f"{checkpoint.__name__}.{stem}")]
    return sorted({name for stem in stems for name in _names_in(stem)})


def _names_in(stem: str) -> Iterator[str]:
    module = importlib.import_module(f"{checkpoint.__name__}.{stem}")
    for exported in module.__all__:
        thing = getattr(module, exported)
        yield exported
        if not isinstance(thing, type):
            if inspect.isfunction(thing):
                yield from names_of_function(exported, thing)
        elif issubclass(thing, enum.Enum) or (dataclasses.is_dataclass(thing) and stem in CALLED):
            yield from names_of_values(thing)
        elif not dataclasses.is_dataclass(thing):
            if not inspect.isabstract(thing) and stem != "stateful":
                yield from (
                    name for name in names_of_function(exported, thing) if "(_" not in name
                )
            if stem in CALLED:
                yield from names_of_class(thing, constructor=False)


def test_every_name_is_drawn_or_excused() -> None:
    assert TABLE.faults(public()) == []


def test_what_is_drawn_is_drawn(streams: Streams) -> None:
    assert TABLE.unreached(streams) == []


@pytest.mark.parametrize("name", ["save(an_argument)", "StateDictOptions.an_option"])
def test_a_name_that_a_new_release_brings_is_a_fault(name: str) -> None:
    assert TABLE.faults([*public(), name]) == [
        f"{name}: not in the table; draw it, or excuse it with a reason"
    ]
