"""Variants that must train alike, and the two runs of fully_shard side by side."""

from __future__ import annotations

import msgspec
import pytest
import torch
from cases import (
    AGAIN,
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    TWO_STEPS,
    ZERO,
    call,
    chain,
    children,
    float_inputs,
    groups,
    make_case,
)
from traces import floats, trace

from fuzzshard.case.case import Case, Checkpoint, Mesh, WrapGroup
from fuzzshard.case.graph import Block
from fuzzshard.case.options import Delay, Precision, Relation
from fuzzshard.case.relations import variant
from fuzzshard.oracles.relation import (
    not_documented,
    relation_differences,
    relation_findings,
)
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.leaves.dropout import Dropout
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import BatchNorm
from fuzzshard.parts.leaves.raw_parameter import RawParameter
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import Forward, Reshard, SetFlag, SetMode, Unshard
from fuzzshard.training.trace import Key
from fuzzshard.verdict import Status
from fuzzshard.world import World

NOISY = chain(a=Linear(out=4), d=Dropout(), b=Linear(out=3))
UNSHARDING: tuple[Op, ...] = (
    Unshard(),
    FORWARD,
    Reshard(),
    BACKWARD,
    STEP,
    ZERO,
    AGAIN,
    BACKWARD,
    STEP,
)
MICROBATCHED: tuple[Op, ...] = (FORWARD, BACKWARD, AGAIN, BACKWARD, STEP)

RELATED: dict[str, Case] = {
    "reshard": make_case(
        chain(a=Linear(out=8), b=Linear(out=4)),
        mesh=4,
        wrap=groups("a", ROOT, reshard=2),
        relation="reshard",
    ),
    "reshard, over microbatches": make_case(schedule=MICROBATCHED, mesh=4, relation="reshard"),
    "prefetch, added": make_case(mesh=4, relation="prefetch"),
    "prefetch, removed": make_case(
        mesh=4,
        wrap=(WrapGroup(modules=("a",), forward_prefetch=("b",)), *groups("b", ROOT)),
        relation="prefetch",
    ),
    "checkpoint": make_case(
        NOISY, mesh=4, checkpoints=(Checkpoint(module="d"),), relation="checkpoint"
    ),
    "delay": make_case(
        mesh=2,
        delays=(Delay(site="before_all_gather", milliseconds=1, ranks="others"),),
        relation="delay",
    ),
    "unshard": make_case(NOISY, UNSHARDING, mesh=4, relation="unshard"),
    "plan": make_case(mesh=2, relation="plan"),
    "mesh": make_case(mesh=4, relation="mesh"),
}


@pytest.mark.parametrize("case", RELATED.values(), ids=RELATED.keys())
def test_stock_torch_gives_equal_bits(four_ranks: World, case: Case) -> None:
    assert variant(case) is not None
    verdict = four_ranks.run(msgspec.structs.replace(case, engines=("fully_shard",)))
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)


@pytest.mark.parametrize("value", [None, True, 2])
def test_what_was_sharded_after_forward_stays_whole(value: bool | int | None) -> None:
    changed = variant(make_case(mesh=4, wrap=groups("a", ROOT, reshard=value), relation="reshard"))
    assert changed is not None
    assert changed.wrap[0].reshard_after_forward is False
    assert changed.wrap[1].reshard_after_forward is (value is None)


def test_ops_keep_their_places() -> None:
    changed = variant(RELATED["unshard"])
    assert changed is not None
    assert changed.schedule[:3] == (SetMode(train=True), FORWARD, Reshard())


_TWICE = Block(
    children=children(a=Linear(out=5), b=Linear(out=3)),
    nodes=(call("h", "a", "x"), call("k", "a", "h"), call("y", "b", "k")),
    outputs=("y",),
)
PARTLY = SetFlag(flag="requires_gradient_sync", value=True, target="a")
ONLY_HSDP = SetFlag(flag="requires_all_reduce", value=False)


def _casting(output: Dtype) -> Case:
    precision = Precision(reduce="bfloat16", output=output, cast_inputs=False)
    wrap = tuple(
        msgspec.structs.replace(group, precision=precision) for group in groups("a", ROOT)
    )
    return make_case(chain(a=Linear(out=4), r=RawParameter()), wrap=wrap, relation="plan")


NO_VARIANT: dict[str, tuple[Relation, Case]] = {
    "nothing to remove": ("checkpoint", make_case()),
    "no delays": ("delay", make_case()),
    "a batch norm counted twice": (
        "checkpoint",
        make_case(chain(a=Linear(out=4), n=BatchNorm()), checkpoints=(Checkpoint(module="n"),)),
    ),
    "a module called twice, to be prefetched": ("prefetch", make_case(_TWICE)),
    "a plan that flags tell apart": ("plan", make_case(schedule=(PARTLY, *TWO_STEPS))),
    "a part that is called by itself": (
        "plan",
        make_case(schedule=(*TWO_STEPS, ZERO, Forward(target="b"), BACKWARD)),
    ),
    "a plan that casts within the model": ("plan", _casting(output="bfloat16")),
    "groups that get zeros once they are unsharded": (
        "unshard",
        make_case(
            schedule=UNSHARDING,
            wrap=(WrapGroup(modules=("a",), communication=("zeros_for_unused",)),),
        ),
    ),
    "no root to wrap alone": ("plan", make_case(wrap=groups("a", "b"))),
    "replicas already": ("mesh", make_case(mesh=Mesh(replicate=1, shard=2))),
    "a flag for replicas": ("mesh", make_case(schedule=(ONLY_HSDP, *TWO_STEPS))),
}


@pytest.mark.parametrize(("relation", "case"), NO_VARIANT.values(), ids=NO_VARIANT.keys())
def test_a_case_has_no_variant_where_it_would_be_another_experiment(
    relation: Relation, case: Case
) -> None:
    assert variant(msgspec.structs.replace(case, relation=relation)) is None


def test_another_plan_may_cast_outputs_to_the_dtype_that_they_have() -> None:
    assert variant(_casting(output="float32")) is not None


def test_one_bit_is_a_finding() -> None:
    case, key = make_case(mesh=4, relation="reshard"), Key(1, "gradient", "a.bias")
    one, other = trace({key: floats(1.0)}), trace({key: floats(1.0 + 2**-23)})
    found = relation_differences(one, other)
    (finding,) = relation_findings(case, one, other, found, rank=2)
    assert (finding.rung, finding.engine, finding.rank) == ("relation", "fully_shard", 2)
    assert relation_differences(one, one) == []
    assert relation_findings(case, one, other, found, rank=2, rounds=True) == []


def test_what_is_documented_of_one_run_only_may_differ() -> None:
    """Zeros where inputs pass through one function, and none where they do not."""
    zeros, sums = Key(1, "input_gradient", "input 0 of batch 0"), Key(1, "gradient", "a.weight")
    one = trace({zeros: torch.zeros(2), sums: floats(1.0)})
    other = trace({zeros: None, sums: floats(2.0)})
    by_plan, by_mesh = make_case(relation="plan"), make_case(relation="mesh")
    for case, pair in ((by_plan, (one, other)), (by_mesh, (other, one))):
        found = relation_differences(*pair)
        assert [d.key for d in not_documented(case, found, (one, one))] == [d.key for d in found]
        assert not_documented(case, found, pair) == []
    rounded = trace({zeros: torch.zeros(2), sums: floats(1.0 + 2**-23)})
    found = relation_differences(one, other)
    assert {d.key for d in not_documented(by_plan, found, (one, rounded))} == {sums, zeros}
    assert [d.key for d in not_documented(by_mesh, found, (one, rounded))] == [zeros]


def test_another_plan_joins_other_inputs(four_ranks: World) -> None:
    """An input that nothing uses has a gradient of zeros where the module that it comes to has a
    group.
    """
    used = msgspec.structs.replace(chain(a=Linear(out=4), b=Linear(out=3)), inputs=("x", "y"))
    inputs = float_inputs(count=2)
    case = make_case(used, inputs=inputs, relation="plan", engines=("fully_shard",))
    assert variant(case) is not None
    assert four_ranks.run(case).status is Status.PASS
