"""What the ops of a schedule mean, on one rank without a world."""

from __future__ import annotations

from typing import Any, cast, get_args, get_type_hints

import pytest
import torch
from cases import (
    AGAIN,
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    ZERO,
    call,
    chain,
    children,
    float_inputs,
    make_case,
)
from msgspec.structs import replace

from fuzzshard.case.case import Case, Freeze, Optimizer, RankBatch
from fuzzshard.case.graph import Block
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.reference.engine import Reference
from fuzzshard.oracles.compare import differences
from fuzzshard.parts.leaves.dropout import Dropout
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import BatchNorm
from fuzzshard.parts.ops import Backward, Forward, SetMode, SetRequiresGrad, ZeroGrad
from fuzzshard.training.trace import Key, Trace
from fuzzshard.training.trainer import Trainer

ONE_RANK = RankMesh(0, 1, torch.device("cpu"), *[cast(Any, None)] * 4, 0)


def train(case: Case, dtype: torch.dtype = torch.float32) -> tuple[Trace, Reference]:
    trace, engine = Trace(), Reference(case, ONE_RANK, dtype)
    Trainer(case, engine, trace).run()
    return trace, engine


def one_rank(*args: Any, **options: Any) -> Case:
    return make_case(*args, mesh=1, **options)


def tensor(trace: Trace, op: int, oracle: str, name: str) -> torch.Tensor:
    found = trace.tensors[Key(op, oracle, name)].tensor
    assert found is not None
    return found


def gradient(trace: Trace, op: int, name: str = "b.weight") -> torch.Tensor:
    return tensor(trace, op, "gradient", name)


def test_training_twice_gives_the_same_trace() -> None:
    case = one_rank(chain(a=Linear(out=4), d=Dropout(), n=BatchNorm()))
    assert differences(train(case)[0], train(case)[0]) == []


def test_the_same_batch_has_the_same_tensors() -> None:
    trace, _ = train(one_rank(schedule=(FORWARD, Forward(batch=1), Forward(batch=0))))
    first, other, again = (tensor(trace, i, "output", "output 0 of the root") for i in range(3))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_backward_of_all_is_the_sum_of_the_backwards_one_by_one() -> None:
    together, _ = train(one_rank(schedule=(FORWARD, AGAIN, BACKWARD), dtype="float64"))
    oldest = Backward(which="oldest")
    apart, _ = train(one_rank(schedule=(FORWARD, AGAIN, oldest, oldest), dtype="float64"))
    torch.testing.assert_close(gradient(together, 2), gradient(apart, 3))


def test_the_newest_backward_is_of_the_last_forward() -> None:
    newest, _ = train(one_rank(schedule=(FORWARD, AGAIN, Backward(which="newest"))))
    alone, _ = train(one_rank(schedule=(AGAIN, BACKWARD)))
    assert torch.equal(gradient(newest, 2), gradient(alone, 1))


def test_a_forward_without_gradients_leaves_nothing_pending() -> None:
    silent, _ = train(one_rank(schedule=(FORWARD, Forward(batch=1, grad=False), BACKWARD)))
    alone, _ = train(one_rank(schedule=(FORWARD, BACKWARD)))
    assert torch.equal(gradient(silent, 2), gradient(alone, 1))


def test_gradients_accumulate_until_they_are_zeroed() -> None:
    trace, _ = train(
        one_rank(schedule=(FORWARD, BACKWARD, FORWARD, BACKWARD, ZERO, FORWARD, BACKWARD))
    )
    assert torch.equal(gradient(trace, 3), 2 * gradient(trace, 1))
    assert torch.equal(gradient(trace, 6), gradient(trace, 1))


def test_gradients_zeroed_in_place_are_zeros_where_others_are_none() -> None:
    for to_none in (True, False):
        freeze = SetRequiresGrad(target="b", value=False)
        schedule = (FORWARD, BACKWARD, ZeroGrad(set_to_none=to_none), freeze, FORWARD, BACKWARD)
        trace, _ = train(one_rank(schedule=schedule))
        held = trace.tensors[Key(5, "gradient", "b.weight")].tensor
        assert held is None if to_none else held is not None and not held.any()


def test_a_backward_that_has_nothing_to_differentiate_is_skipped() -> None:
    case = one_rank(freezes=(Freeze(target=ROOT),), schedule=(FORWARD, BACKWARD))
    inputs = case.inputs.tensors[0]
    assert inputs.requires_grad
    assert train(case)[0].skipped == []
    calm = replace(case.inputs, tensors=(replace(inputs, requires_grad=False),))
    assert train(replace(case, inputs=calm))[0].skipped == [1]


def test_a_forward_of_a_part_has_inputs_of_its_own() -> None:
    trace, _ = train(one_rank(schedule=(Forward(target="b"), BACKWARD)))
    assert tensor(trace, 0, "output", "output 0 of b").shape == (2, 3)
    assert trace.tensors[Key(1, "gradient", "a.weight")].tensor is None


def test_a_mode_lasts_until_the_next_one() -> None:
    case = one_rank(
        chain(d=Dropout(), b=Linear(out=3)),
        schedule=(FORWARD, SetMode(train=False), FORWARD, FORWARD, SetMode(train=True), FORWARD),
    )
    trace, _ = train(case)
    outputs = {i: tensor(trace, i, "output", "output 0 of the root") for i in (0, 2, 3, 5)}
    assert torch.equal(outputs[2], outputs[3])
    assert not torch.equal(outputs[2], outputs[0])
    assert not torch.equal(outputs[0], outputs[5]), "drawn anew in every forward"
    assert not torch.equal(outputs[2], outputs[5])


def test_only_the_outputs_named_enter_the_loss() -> None:
    case = one_rank(schedule=(FORWARD,), loss="sum")
    trace, _ = train(case)
    output = tensor(trace, 0, "output", "output 0 of the root")
    assert torch.equal(tensor(trace, 0, "loss", "loss"), output.sum())


@pytest.mark.parametrize("rows", [0, 1])
def test_what_is_dropped_without_gradients_has_none_with_an_empty_batch_either(rows: int) -> None:
    nodes = (call("h", "a", "x"), call("y", "d", "h", grad=False))
    model = Block(children=children(a=Linear(out=4), d=Dropout()), nodes=nodes, outputs=("y",))
    inputs = replace(float_inputs(), rank_batches=(RankBatch(rank=0, rows=rows),))
    trace, _ = train(one_rank(model, (FORWARD, BACKWARD), inputs=inputs))
    assert trace.skipped == [1]


def test_a_step_moves_what_has_a_gradient_and_nothing_else() -> None:
    case = one_rank(schedule=(FORWARD, BACKWARD, STEP), freezes=(Freeze(target="a"),))
    trace, engine = train(case)
    before = Reference(case, ONE_RANK, torch.float32)
    assert torch.equal(engine.parameter("a.weight"), before.parameter("a.weight"))
    expected = before.parameter("b.weight") - 0.125 * gradient(trace, 1)
    assert torch.equal(tensor(trace, 2, "parameter", "b.weight"), expected)


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in get_args(get_type_hints(Optimizer)["kind"])
        if not Optimizer(kind=kind).steps_matrices  # the model has biases
    ],
)
def test_the_optimizer_holds_every_parameter_and_the_hyperparameters(kind: Any) -> None:
    case = one_rank(
        optimizer=Optimizer(kind=kind, lr=0.5, weight_decay=0.25), freezes=(Freeze(target="a"),)
    )
    engine = Reference(case, ONE_RANK, torch.float32)
    optimizer = Trainer(case, engine, None).optimizers[0]
    assert type(optimizer).__name__.lower() == kind
    (group,) = optimizer.param_groups
    assert (group["lr"], len(group["params"])) == (0.5, 4)
    assert group.get("weight_decay", 0.25) == 0.25  # Rprop has none
