"""Every public call by which people change or read a model in training has its cell at every
moment.
"""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from types import ModuleType

import pytest
import torch
from calls import Calls, Cell
from cases import moments_of_op
from packaging.version import Version
from streams import Drawn, Streams, reach_first
from torch import nn
from torch.distributed.checkpoint import state_dict
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad

from fuzzshard.analysis.features import features
from fuzzshard.analysis.schedule_state import follow
from fuzzshard.contracts.contract import NEWEST_TORCH, installed_torch
from fuzzshard.parts.moments import Moment
from fuzzshard.parts.ops import OPS
from fuzzshard.strategies.steered import steered_stream

CALLS = Calls.load()
CLASSES = (
    *(nn.Module, FSDPModule, DistributedDataParallel, FullyShardedDataParallel),
    *(torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler),
)
OF_TENSORS = (
    *("requires_grad_", "grad", "grad_dtype"),
    *("register_hook", "register_post_accumulate_grad_hook"),
)
"""What of a tensor concerns a parameter in training."""


def public() -> Iterator[str]:
    """The methods of the classes, and the functions of the modules."""
    for cls in CLASSES:
        for name, value in vars(cls).items():
            is_method = callable(value) or isinstance(value, classmethod | staticmethod)
            if not name.startswith("_") and is_method and not _is_constant(name):
                yield f"{cls.__name__}.{name}"
    yield from (f"Parameter.{name}" for name in OF_TENSORS if hasattr(nn.Parameter, name))
    yield "Tensor.backward"
    for name in torch.autograd.__all__:
        if not isinstance(getattr(torch.autograd, name), ModuleType):
            yield f"autograd.{name}"
    for name in state_dict.__all__ if hasattr(state_dict, "__all__") else vars(state_dict):
        value = getattr(state_dict, name)
        here = getattr(value, "__module__", "") == state_dict.__name__
        if here and inspect.isfunction(value) and not name.startswith("_"):
            yield f"state_dict.{name}"
    yield from (f"clip_grad.{name}" for name in clip_grad.__all__)


def _is_constant(name: str) -> bool:
    """Whether a name of a class is that of a type."""
    return name[0].isupper()


def faults(names: set[str]) -> list[str]:
    """The names that are not in the table."""
    return sorted(names - CALLS.rows.keys() - CALLS.excused.keys())


def test_every_public_call_has_a_row_or_an_excuse() -> None:
    assert faults(set(public())) == []


def test_a_call_that_a_new_release_brings_has_no_row() -> None:
    assert faults({*public(), "FSDPModule.a_method"}) == ["FSDPModule.a_method"]


@pytest.mark.skipif(
    Version(installed_torch()).release[:2] < Version(NEWEST_TORCH).release,
    reason="older releases lack some",
)
def test_every_row_is_of_a_call_that_there_is() -> None:
    listed = CALLS.rows.keys() | CALLS.excused.keys()
    assert sorted(listed - set(public())) == []


def test_no_call_has_both_a_row_and_an_excuse() -> None:
    assert not CALLS.rows.keys() & CALLS.excused.keys()
    assert not CALLS.open.keys() & (CALLS.ops.keys() | CALLS.cells.keys())


def test_what_is_forbidden_has_a_source_and_what_is_impossible_a_reason() -> None:
    for name, moment, cell in CALLS.each():
        if cell.kind in ("forbidden", "impossible"):
            assert cell.never is not None, (name, moment)
            assert len(cell.never.why.split()) > 3, (name, moment)
            assert bool(cell.never.source) == (cell.kind == "forbidden")


def _steered_to(op: str | None) -> Iterator[Drawn]:
    """Cases that have the op, whatever else they have."""
    features_of = {str(each.__struct_config__.tag): [*each.meanings] for each in OPS}
    if op in features_of and (names := features_of[op]):
        for seed in range(8):  # the swarms that it starts from allow few moments, or many
            steered = reach_first(names[0], seed=seed)
            assert steered is not None, names
            stream = steered_stream(seed, world_size=Streams.WORLD_SIZE, steered=steered)
            for case in itertools.islice(stream, 250):
                yield Drawn(case, features(case))


@pytest.fixture(scope="module")
def shown(streams: Streams) -> Counter[object]:
    """In how many cases an op comes at a moment, and how many have a feature: of those cases that
    it takes to show every cell that is drawn. Those are the shared ones, and up to 2,000 more that
    have the op of what these do not show.
    """
    counts: Counter[object] = Counter()

    def look(cases: Iterable[Drawn], wanted: list[tuple[Moment, Cell]]) -> None:
        for case, present in cases:
            wanted[:] = [(m, cell) for m, cell in wanted if not _is_shown(cell, m, counts)]
            if not wanted:
                break
            counts.update(
                {(at.op.tag, moment) for at in follow(case) for moment in moments_of_op(at)}
            )
            counts.update(present)

    wanted = [(moment, cell) for _, moment, cell in CALLS.each() if cell.kind == "drawn"]
    look(streams.each(), wanted)
    for op in {cell.op for _, cell in wanted}:
        look(_steered_to(op), [(m, cell) for m, cell in wanted if cell.op == op])
    return counts


def test_every_cell_that_is_drawn_is_in_a_case(shown: Counter[object]) -> None:
    missing = [(n, m) for n, m, cell in CALLS.each() if not _is_shown(cell, m, shown)]
    assert missing == []


def test_a_cell_that_no_case_shows_is_missing(shown: Counter[object]) -> None:
    assert not _is_shown(Cell("drawn", op="no_such_op"), "after_step", shown)
    assert not _is_shown(Cell("drawn", features=("no:feature",)), "after_step", shown)


def test_no_op_comes_at_a_moment_that_is_not_for_it(shown: Counter[object]) -> None:
    never = [(str(op.__struct_config__.tag), moment) for op in OPS for moment in op.never]
    assert [each for each in never if shown[each]] == []
    assert never


def _is_shown(cell: Cell, moment: Moment, shown: Counter[object]) -> bool:
    if cell.kind != "drawn":
        return True
    return all(shown[feature] for feature in cell.features) and (
        not cell.op or shown[cell.op, moment] > 0
    )
