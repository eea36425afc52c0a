"""The reducer's promises: never twice, and always the best so far."""

from __future__ import annotations

import itertools

import pytest
from cases import graph
from msgspec.structs import replace

from fuzzshard.analysis.order import size_order
from fuzzshard.analysis.schedule_state import follow
from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case, Inputs, Mesh, TensorSpec, WrapGroup
from fuzzshard.case.codec import encode
from fuzzshard.case.graph import Block, Call, Child
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.mlp import MLP
from fuzzshard.shrink import Budget, ShrinkStep, shrink
from fuzzshard.shrink.passes import lower


def big_case(num_blocks: int = 6, num_steps: int = 10) -> Case:
    """Residual blocks of two Linears and an MLP each, every block wrapped."""
    inner = graph(
        "a = up(x)",
        "b = down(a)",
        "c = add(x, b)",
        "d = mlp(c)",
        up=Linear(out=24),
        down=Linear(out=8),
        mlp=MLP(hidden=5),
    )
    names = [f"layer{i}" for i in range(num_blocks)]
    values = ["x", *(f"v{i}" for i in range(num_blocks))]
    calls = (Call(name=values[i + 1], module=n, args=(values[i],)) for i, n in enumerate(names))
    return Case(
        seed=77,
        model=Block(
            children=tuple(Child(name=n, module=inner) for n in names),
            nodes=tuple(calls),
            outputs=(values[-1],),
        ),
        inputs=Inputs(batch=6, tensors=(TensorSpec(size=8),)),
        mesh=Mesh(shard=2, replicate=2),
        schedule=(ops.Forward(batch=1), ops.Backward(), ops.Step(), ops.ZeroGrad()) * num_steps,
        wrap=(*(WrapGroup(modules=(n,)) for n in names), WrapGroup(modules=("",))),
        dtype="float64",
    )


def has_two_linears_and_a_step(case: Case) -> bool:
    found = validate(case)
    linears = [p for p, m in found.modules.items() if isinstance(m, Linear) and p in found.called]
    return (
        len(linears) >= 2
        and len(case.wrap) >= 2
        and ops.Step() in case.schedule
        and case.mesh.size >= 2
    )


def test_a_case_of_24_linears_and_40_ops_shrinks_in_fewer_than_150_evaluations() -> None:
    result = shrink(big_case(), has_two_linears_and_a_step)
    size = size_order(result.case)
    assert result.case.mesh == Mesh(shard=2)
    assert (size.ops, size.groups, size.leaves, size.blocks) == (2, 2, 2, 1)
    assert result.finished
    assert result.evaluations < 150


def saves_whole_and_loads_sharded(case: Case) -> bool:
    saved = loaded = 0
    for at in follow(case):
        saved = at.case.mesh.shard if at.op.via else saved
        loaded = at.case.mesh.shard if at.op.loads else loaded
    return 0 < saved < loaded


def test_a_checkpoint_of_another_mesh_shrinks_to_two_ranks() -> None:
    train = (ops.Forward(batch=1), ops.Backward(), ops.Step(), ops.ZeroGrad())
    moved = (*train, ops.CorruptState(how="rebuild", mesh=(4,)), ops.LoadState(assign=True))
    case = replace(big_case(), schedule=(*train, ops.SaveState(), *moved, *train))
    small = shrink(case, saves_whole_and_loads_sharded).case
    assert small.mesh == Mesh(replicate=2, shard=1)
    rebuilt = ops.CorruptState(how="rebuild", mesh=(2,))
    assert small.schedule == (
        ops.Forward(),
        ops.Backward(),
        ops.SaveState(),
        rebuilt,
        ops.LoadState(),
    )


def test_no_case_is_evaluated_twice_and_every_one_is_valid() -> None:
    seen: list[bytes] = []

    def still_fails(case: Case) -> bool:
        validate(case)
        seen.append(encode(case))
        return has_two_linears_and_a_step(case)

    result = shrink(big_case(), still_fails)
    assert len(seen) == len(set(seen)) == result.evaluations


def test_the_best_case_only_ever_gets_smaller() -> None:
    events: list[ShrinkStep] = []
    result = shrink(big_case(), has_two_linears_and_a_step, on_progress=events.append)
    sizes = [size_order(big_case()), *(e.size for e in events)]
    assert all(later < earlier for earlier, later in itertools.pairwise(sizes))
    assert tuple(events) == result.trail
    assert events[-1].case == result.case


@pytest.mark.parametrize("limit", [1, 2, 10, 30])
def test_an_exhausted_budget_returns_the_best_so_far(limit: int) -> None:
    budget = Budget(max_evaluations=limit)
    result = shrink(big_case(), has_two_linears_and_a_step, budget=budget)
    assert not result.finished
    assert result.evaluations == limit
    assert has_two_linears_and_a_step(result.case)


def test_no_time_at_all_returns_the_case_itself() -> None:
    result = shrink(big_case(), has_two_linears_and_a_step, budget=Budget(max_seconds=0))
    assert (result.case, result.evaluations, result.finished) == (big_case(), 0, False)


def test_an_interrupt_returns_the_best_so_far() -> None:
    calls: list[Case] = []

    def still_fails(case: Case) -> bool:
        calls.append(case)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return has_two_linears_and_a_step(case)

    result = shrink(big_case(), still_fails)
    assert not result.finished
    assert size_order(result.case) < size_order(big_case())
    assert has_two_linears_and_a_step(result.case)


def test_an_unfinished_reduction_resumes_from_its_result() -> None:
    whole = shrink(big_case(), has_two_linears_and_a_step)
    part = shrink(big_case(), has_two_linears_and_a_step, budget=Budget(max_evaluations=10))
    assert shrink(part.case, has_two_linears_and_a_step).case == whole.case


def test_a_case_that_does_not_fail_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fail"):
        shrink(big_case(), lambda case: False)


def test_an_error_of_the_predicate_is_not_swallowed() -> None:
    def broken(case: Case) -> bool:
        raise RuntimeError("the world is gone")

    with pytest.raises(RuntimeError, match="the world is gone"):
        shrink(big_case(), broken)


def test_a_leaf_is_taken_apart_to_get_past_a_local_minimum() -> None:
    case = replace(big_case(1, 1), mesh=Mesh(shard=1), wrap=())

    def named_like_a_part(case: Case) -> bool:
        return any(fqn.endswith("up.weight") for fqn in validate(case).parameters)

    only_mlp = graph("h = mlp(x)", mlp=MLP(hidden=3))
    result = shrink(replace(case, model=only_mlp), named_like_a_part)
    assert size_order(result.case).leaves == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, []), (2, [1]), (3, [1, 2]), (5, [1, 2, 3, 4]), (40, [1, 2, 20, 30, 35, 38, 39])],
)
def test_lower_offers_the_least_values_first_and_then_closes_in(
    value: int, expected: list[int]
) -> None:
    assert list(lower(value)) == expected
