"""Every public name of what steps, clips, scales, averages and recomputes is drawn, or
excused with a reason.
"""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Iterator

import pytest
import torch
from streams import Streams
from surface import Table, names_of_class, names_of_function
from torch.distributed.optim import ZeroRedundancyOptimizer

TABLE = Table.load("optim")
MODULES = (
    *("torch.amp", "torch.utils.checkpoint", "torch.distributed.algorithms.join"),
    *("torch.optim.swa_utils",),
)
"""Those whose functions people call, and whose classes they make."""
CLIPPING = ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_")


def public() -> list[str]:
    """What they export, and the arguments of functions and constructors; of schedulers of the
    learning rate the classes alone.
    """
    return sorted({*_names()})


def _names() -> Iterator[str]:
    methods = inspect.getmembers(torch.optim.Optimizer, inspect.isfunction)
    yield from (f"Optimizer.{name}" for name, _ in methods if not name.startswith("_"))
    for name in torch.optim.__all__:
        kind = getattr(torch.optim, name)
        if isinstance(kind, type) and kind is not torch.optim.Optimizer:
            yield name
            yield from (n for n in names_of_function(name, kind) if n != f"{name}(params)")
    yield from torch.optim.lr_scheduler.__all__
    for name in CLIPPING:
        yield name
        yield from names_of_function(name, getattr(torch.nn.utils, name))
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            yield from _names_of(name, getattr(module, name))
    yield from _names_of("ZeroRedundancyOptimizer", ZeroRedundancyOptimizer)


def _names_of(name: str, thing: object) -> Iterator[str]:
    yield name
    if isinstance(thing, type):
        if not inspect.isabstract(thing) and not issubclass(thing, (Exception, enum.Enum)):
            yield from names_of_function(name, thing)
        yield from (n for n in names_of_class(thing, constructor=False) if n != name)
    elif inspect.isfunction(thing):
        yield from names_of_function(name, thing)


def test_every_name_is_drawn_or_excused() -> None:
    assert TABLE.faults(public()) == []


def test_what_is_drawn_is_drawn(streams: Streams) -> None:
    assert TABLE.unreached(streams) == []


@pytest.mark.parametrize("name", ["AdamW(an_argument)", "GradScaler.a_method"])
def test_a_name_that_a_new_release_brings_is_a_fault(name: str) -> None:
    assert TABLE.faults([*public(), name]) == [
        f"{name}: not in the table; draw it, or excuse it with a reason"
    ]
