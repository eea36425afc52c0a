from __future__ import annotations

import msgspec
import torch
from cases import BACKWARD, STEP, call, children, groups, make_case
from traces import difference, floats, gradient

from fuzzshard.case.case import Checkpoint, Freeze, Optimizer
from fuzzshard.case.graph import Block
from fuzzshard.oracles.allowed import is_allowed
from fuzzshard.parts.leaves.batch_norm import BatchNorm
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Cast, CorruptState, Forward, LoadState, SaveState, ZeroGrad
from fuzzshard.training.trace import Key

KEY = gradient(1)


def test_a_zero_gradient_of_an_unused_input_is_allowed_for_fully_shard_only() -> None:
    case = make_case()
    key = Key(1, "input_gradient", "input 0 of batch 0")
    assert is_allowed("fully_shard", case, difference(key, floats(0.0), None))
    assert not is_allowed("ddp", case, difference(key, floats(0.0), None))
    assert not is_allowed("fully_shard", case, difference(key, floats(1.0), None))
    assert not is_allowed("fully_shard", case, difference(KEY, floats(0.0), None))


def test_a_state_is_allowed_before_the_first_step_as_the_optimizer_makes_it() -> None:
    case = make_case(optimizer=Optimizer(kind="asgd", lr=0.5))
    for state, initial in (("ax", 0.0), ("mu", 1.0), ("eta", 0.5), ("step", 0.0)):
        key = Key(1, "resume", f"{state} of a.weight")
        assert is_allowed("ddp", case, difference(key, floats(initial), None))
        assert not is_allowed("ddp", case, difference(key, floats(initial + 1.0), None))
    inexact = make_case(optimizer=Optimizer(kind="asgd", lr=0.02))
    for dtype in (torch.float16, torch.float64):  # a load casts it
        cast = difference(Key(1, "resume", "eta of a.weight"), floats(0.02).to(dtype), None)
        assert is_allowed("ddp", inexact, cast)


def test_a_load_of_a_state_that_no_step_had_made_may_cast_a_scalar() -> None:
    trained = (Forward(), BACKWARD, STEP)
    early = make_case(schedule=(SaveState(), LoadState(), *trained))
    frozen = make_case(
        schedule=(*trained, SaveState(), LoadState(), *trained), freezes=(Freeze(target="a"),)
    )
    late = make_case(schedule=(*trained, SaveState(), LoadState(), *trained))
    key = Key(4, "optimizer_state", "mu of a.weight")
    cast = difference(key, floats(0.5).double(), floats(0.5))
    assert is_allowed("fully_shard", early, cast)
    assert is_allowed("fully_shard", frozen, cast)
    assert not is_allowed("fully_shard", late, cast)
    skipped = Optimizer(kind="asgd", grad_scaler="infinite")
    assert is_allowed("fully_shard", msgspec.structs.replace(late, optimizer=skipped), cast)
    other = difference(key, floats(0.75).double(), floats(0.5))
    assert not is_allowed("fully_shard", early, other)


def test_a_first_step_may_have_the_size_that_a_save_has_made_before_a_scheduler_changes_it() -> (
    None
):
    scheduled = Optimizer(kind="asgd", lr=0.5, lr_scheduler="step_lr")
    trained = (Forward(), BACKWARD, STEP)
    early = make_case(schedule=(SaveState(), STEP, *trained), optimizer=scheduled)
    differs = difference(Key(4, "parameter", "a.weight"), floats(1.0), floats(2.0))
    assert is_allowed("ddp", early, differs)
    before = difference(Key(0, "parameter", "a.weight"), floats(1.0), floats(2.0))
    assert not is_allowed("ddp", early, before)
    for kind in (Optimizer(kind="asgd", lr=0.5), Optimizer(kind="adam", lr_scheduler="step_lr")):
        assert not is_allowed("ddp", msgspec.structs.replace(early, optimizer=kind), differs)
    missing = difference(Key(4, "parameter", "a.weight"), floats(1.0), None)
    assert not is_allowed("ddp", early, missing)
    for schedule in (
        (*trained, SaveState(), STEP, *trained),
        (SaveState(), *trained, *trained),
        (SaveState(via="state_dict"), STEP, *trained),
        (SaveState(), *trained, *trained, LoadState(), *trained),
        (SaveState(), *trained, SaveState(), LoadState(), STEP, *trained),
    ):
        otherwise = msgspec.structs.replace(early, schedule=schedule)
        late = difference(
            Key(len(schedule) - 1, "parameter", "a.weight"), floats(1.0), floats(2.0)
        )
        assert not is_allowed("ddp", otherwise, late)
    cast = difference(Key(4, "parameter", "a.weight"), floats(1.0), floats(2.0).bfloat16())
    assert not is_allowed("ddp", early, cast)
    anew = (SaveState(), STEP, *trained)
    for schedule in (
        (*trained, Cast(dtype="float64"), *anew),
        (*trained, SaveState(via="state_dict"), CorruptState(how="rebuild"), *anew),
        (SaveState(via="state_dict"), *trained, ZeroGrad(), LoadState(), *anew),
    ):
        otherwise = msgspec.structs.replace(early, schedule=schedule)
        late = difference(
            Key(len(schedule) - 1, "parameter", "a.weight"), floats(1.0), floats(2.0)
        )
        assert is_allowed("ddp", otherwise, late)


def test_statistics_that_a_graph_recomputes_are_allowed_in_buffers_and_in_kept_state_dicts() -> (
    None
):
    model = Block(
        children=children(a=Linear(out=4), n=BatchNorm()),
        nodes=(call("h", "a", "x"), call("y", "n", "h")),
        outputs=("y",),
    )
    checkpoints = (Checkpoint(module="n"),)
    plain = make_case(model, (Forward(), BACKWARD, STEP), wrap=groups(""), checkpoints=checkpoints)
    traced = msgspec.structs.replace(plain, compile="aot_eager")
    for oracle in ("buffer", "state_dict"):
        counted = difference(Key(1, oracle, "n.num_batches_tracked"), floats(1.0), floats(2.0))
        assert is_allowed("fully_shard", traced, counted)
        assert is_allowed("fully_shard", plain, counted)
        assert not is_allowed("ddp", plain, counted)
        weight = difference(Key(1, oracle, "a.weight"), floats(1.0), floats(2.0))
        assert not is_allowed("fully_shard", traced, weight)
