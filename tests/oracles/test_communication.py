"""How many collectives fully_shard documents; that real ranks issue as many is in tests/world."""

from __future__ import annotations

import pytest
from cases import BACKWARD, FORWARD, ROOT, STEP, call, chain, children, groups, make_case

from fuzzshard.case.case import Case, Checkpoint, Freeze, Inputs, Mesh, TensorSpec, Tie, WrapGroup
from fuzzshard.case.graph import Alias, Block, TensorOp
from fuzzshard.case.options import Precision
from fuzzshard.mending.mend import mends_for
from fuzzshard.oracles.communication import communication_findings, expected_communication
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.embedding import Embedding
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.mlp import MLP
from fuzzshard.parts.op import Flag, Op
from fuzzshard.parts.ops import Backward, Forward, Reshard, SetFlag, SetRequiresGrad, Unshard
from fuzzshard.training.collectives import Collective
from fuzzshard.training.trace import Trace
from fuzzshard.verdict import Status
from fuzzshard.world import World

ONCE: tuple[Op, ...] = (FORWARD, BACKWARD)
KINDS = ("all_gather", "reduce_scatter", "all_reduce")


def counts(case: Case) -> list[tuple[int, int, int]]:
    """All-gathers, reduce-scatters and all-reduces of every op; all of them must be certain."""
    found = []
    for expected in expected_communication(case, 0):
        assert expected is not None
        assert expected.gathers is not None
        assert expected.gathers[0] == expected.gathers[1]
        kinds = [i.kind for i in expected.reductions]
        found.append(
            (expected.gathers[0], kinds.count("reduce_scatter"), kinds.count("all_reduce"))
        )
    return found


def sizes(case: Case, op: int) -> list[int | None]:
    expected = expected_communication(case, 0)[op]
    assert expected is not None
    return [i.size for i in expected.reductions]


@pytest.mark.parametrize(
    ("reshard", "again"), [(None, 1), (True, 2), (False, 0), (1, 0), (2, 2), (4, 2)], ids=str
)
def test_backward_gathers_again_what_forward_did_not_keep(
    reshard: bool | int | None, again: int
) -> None:
    case = make_case(schedule=ONCE, mesh=4, wrap=groups("a", ROOT, reshard=reshard))
    assert counts(case) == [(2, 0, 0), (again, 2, 0)]


def test_what_backward_does_not_need_is_not_gathered_again() -> None:
    model = chain(e=Embedding(vocab=8, dim=4), b=Linear(out=3))
    ids = Inputs(batch=2, seq=3, tensors=(TensorSpec(kind="ids", size=8),))
    embedding = WrapGroup(modules=("e",), communication=("no_backward_unshard",))
    case = make_case(model, ONCE, wrap=(embedding, *groups("b", ROOT, reshard=True)), inputs=ids)
    assert counts(case) == [(2, 0, 0), (1, 2, 0)]


def test_zeros_are_reduced_for_parameters_without_a_gradient() -> None:
    model = chain(a=Linear(out=5), b=Linear(out=3))
    wrap = (
        *groups("a"),
        WrapGroup(modules=("b",), communication=("zeros_for_unused",)),
        *groups(ROOT),
    )
    ran = make_case(model, (FORWARD, BACKWARD, Forward(target="a"), BACKWARD), wrap=wrap)
    assert [c[1] for c in counts(ran)] == [0, 2, 0, 2]


def test_one_shard_issues_no_collective() -> None:
    assert counts(make_case(schedule=ONCE, mesh=1)) == [(0, 0, 0), (0, 0, 0)]


def test_replicas_are_reduced_even_where_there_is_one_shard() -> None:
    case = make_case(schedule=ONCE, mesh=Mesh(replicate=2, shard=1), wrap=groups(ROOT))
    assert counts(case) == [(0, 0, 0), (0, 0, 1)]


def test_a_module_called_twice_is_gathered_twice_and_reduced_once() -> None:
    model = Block(
        children=children(a=Linear(out=5), b=Linear(out=3)),
        nodes=(call("h", "a", "x"), call("k", "a", "h"), call("y", "b", "k")),
        outputs=("y",),
    )
    case = make_case(model, ONCE, wrap=groups("a", ROOT, reshard=True))
    assert counts(case) == [(3, 0, 0), (3, 2, 0)]


def test_a_forward_without_gradients_gathers_and_reduces_nothing() -> None:
    case = make_case(schedule=(Forward(grad=False), FORWARD, BACKWARD), wrap=groups("a", ROOT))
    assert counts(case) == [(2, 0, 0), (1, 0, 0), (1, 2, 0)]


def test_a_backward_that_does_not_reach_a_module_leaves_its_group_alone() -> None:
    model = Block(
        children=children(a=Linear(out=5), b=Linear(out=3)),
        nodes=(call("h", "a", "x"), call("k", "b", "x")),
        outputs=("h", "k"),
        returns="tuple",
    )
    case = make_case(model, (Forward(outputs=(0,)), BACKWARD), wrap=groups("a", "b", ROOT))
    assert counts(case) == [(2, 0, 0), (1, 1, 0)]


def test_frozen_parameters_are_gathered_and_not_reduced() -> None:
    case = make_case(schedule=ONCE, wrap=groups("a", ROOT), freezes=(Freeze(target="a.weight"),))
    assert counts(case) == [(2, 0, 0), (1, 2, 0)]
    assert sorted(s for s in sizes(case, 1) if s) == [3, 12]


def test_a_frozen_group_is_not_reduced() -> None:
    case = make_case(schedule=ONCE, wrap=groups("a", ROOT), freezes=(Freeze(target="a"),))
    assert counts(case) == [(2, 0, 0), (1, 1, 0)]


def test_what_was_frozen_after_forward_is_not_reduced() -> None:
    freeze = SetRequiresGrad(target="a", value=False)
    case = make_case(schedule=(FORWARD, Reshard(), freeze, BACKWARD), wrap=groups("a", ROOT))
    assert counts(case)[3] == (2, 1, 0)


def test_shards_are_padded_to_equal_sizes() -> None:
    case = make_case(chain(a=Linear(out=3, bias=False)), ONCE, mesh=2, wrap=groups(ROOT))
    assert sizes(case, 1) == [10]


def test_an_explicit_unshard_gathers_in_place_of_the_forward() -> None:
    case = make_case(
        schedule=(Unshard(async_op=True), FORWARD, Reshard(), BACKWARD), wrap=groups("a", ROOT)
    )
    assert counts(case) == [(2, 0, 0), (0, 0, 0), (0, 0, 0), (2, 2, 0)]


def test_tied_weights_are_reduced_once() -> None:
    tied = chain(a=Linear(out=5), b=Linear(out=5))
    case = make_case(
        tied,
        ONCE,
        wrap=groups(("a", "b"), ROOT),
        ties=(Tie(parameter="b.weight", source="a.weight"),),
    )
    assert counts(case) == [(1, 0, 0), (1, 1, 0)]


def test_recomputation_gathers_nothing_that_backward_would_not() -> None:
    case = make_case(
        schedule=ONCE, wrap=groups("a", "b", ROOT), checkpoints=(Checkpoint(module="a"),)
    )
    assert counts(case) == [(2, 0, 0), (2, 2, 0)]


def test_a_recomputation_that_stops_before_an_inner_checkpoint_may_gather_nothing(
    two_ranks: World,
) -> None:
    model = Block(
        children=children(a=Linear(out=3)),
        nodes=(TensorOp(name="h", op="mul", args=("x", "x")), call("k", "a", "x")),
        outputs=("h",),
    )
    checkpoints = (Checkpoint(module=""), Checkpoint(module="a", implementation="utils"))
    schedule = (FORWARD, FORWARD, Backward(which="oldest"), BACKWARD, FORWARD, Forward(grad=False))
    wrap = groups("a", reshard=True)
    case = make_case(model, schedule, wrap=wrap, checkpoints=checkpoints)
    gathers = [expected and expected.gathers for expected in expected_communication(case, 0)]
    assert gathers == [(1, 1), (1, 1), None, None, (1, 1), (1, 1)]
    assert two_ranks.run(case).status is Status.PASS


def test_what_a_recomputation_may_have_unsharded_was_maybe_not_prefetched(
    two_ranks: World,
) -> None:
    model = Block(
        children=children(a=Linear(out=4), b=Linear(out=4)),
        nodes=(
            call("h", "a", "x"),
            call("k", "b", "x"),
            TensorOp(name="d", op="detach", args=("h",)),
            TensorOp(name="y", op="mul", args=("k", "d")),
        ),
        outputs=("y",),
    )
    ahead = WrapGroup(modules=("b",), backward_prefetch=("a", ""))
    wrap = (WrapGroup(modules=("a",)), ahead, WrapGroup(modules=("",)))
    schedule = (SetFlag(flag="is_last_backward", value=False), FORWARD, BACKWARD, FORWARD)
    case = make_case(model, schedule, wrap=wrap, checkpoints=(Checkpoint(module=""),))
    gathers = [expected and expected.gathers for expected in expected_communication(case, 0)]
    assert gathers == [(0, 0), (2, 2), None, (1, 2)]
    assert two_ranks.run(case).status is Status.PASS


def test_what_a_recomputation_may_not_have_come_to_maybe_is_prefetched_still(
    two_ranks: World,
) -> None:
    model = Block(
        children=children(a=Linear(out=4), b=Linear(out=4)),
        nodes=(call("h", "a", "x"), call("k", "b", "x")),
        outputs=("k", "h"),
        returns="tuple",
    )
    checkpoints = (Checkpoint(module=""), Checkpoint(module="b", implementation="utils"))
    schedule = (
        SetFlag(flag="is_last_backward", value=False),
        Forward(outputs=(1,)),
        BACKWARD,
        FORWARD,
    )
    case = make_case(model, schedule, wrap=groups("b", ROOT), checkpoints=checkpoints)
    gathers = [expected and expected.gathers for expected in expected_communication(case, 0)]
    assert gathers == [(0, 0), (2, 2), None, (1, 2)]
    assert two_ranks.run(case).status is Status.PASS


def test_what_a_recomputation_gathers_after_the_post_backward_is_sharded_again(
    two_ranks: World,
) -> None:
    returns_its_input = Block(
        children=children(c=Linear(out=3)),
        nodes=(call("h", "c", "x"),),
        outputs=("h", "x"),
        returns="tuple",
    )
    model = Block(
        children=children(a=Linear(out=3), b=returns_its_input),
        nodes=(call("h", "a", "x"), call("k", "b", "h")),
        outputs=("k.1",),
    )
    whole = (Checkpoint(module="", implementation="utils"),)
    schedule = (FORWARD, BACKWARD, FORWARD)
    wrap = groups("b", ROOT)
    case = make_case(model, schedule, wrap=wrap, checkpoints=whole, engines=("fully_shard",))
    assert [gathers for gathers, _, _ in counts(case)] == [2, 2, 2]
    assert two_ranks.run(case, mends=mends_for()).status is Status.PASS


def test_an_input_that_the_loss_does_not_depend_on_brings_no_gradient(two_ranks: World) -> None:
    inner = Block(
        children=children(c=Linear(out=3)),
        nodes=(call("h", "c", "x0"),),
        outputs=("h", "x1"),
        inputs=("x0", "x1"),
        returns="tuple",
    )
    model = Block(
        children=children(a=Linear(out=5), b=Linear(out=5), inner=inner),
        nodes=(call("h", "a", "x"), call("k", "b", "x"), call("y", "inner", "h", "k")),
        outputs=("y.0", "y.1"),
        returns="tuple",
    )
    schedule = (Forward(outputs=(1,)), BACKWARD, FORWARD, BACKWARD)
    case = make_case(model, schedule, wrap=groups("a", "b", "inner"), engines=("fully_shard",))
    assert [reductions for _, reductions, _ in counts(case)] == [0, 1, 0, 3]
    assert two_ranks.run(case, mends=mends_for()).status is Status.PASS


@pytest.mark.parametrize(("outer", "known"), [(ROOT, True), ("q", False)])
def test_nothing_is_known_of_a_list_group_with_a_module_outside_its_root(
    outer: str, known: bool
) -> None:
    case = make_case(
        chain(q=chain(a=MLP(hidden=3)), b=Linear(out=4)), ONCE, wrap=groups(("q.a", "b"), outer)
    )
    assert [expected is not None for expected in expected_communication(case, 0)] == [known, known]


def test_finalizing_reduces_what_an_earlier_backward_of_a_list_group_did_not(
    two_ranks: World,
) -> None:
    model = chain(a=Linear(out=5, bias=False), r=Activation())
    without, again = (
        SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True)
    )
    schedule = (without, FORWARD, BACKWARD, again, Forward(target="a"), BACKWARD, STEP)
    case = make_case(
        model,
        schedule,
        wrap=groups(("a", "r"), ROOT),
        mesh=Mesh(replicate=2, shard=1),
        finalize="wait",
    )
    assert [reductions for *_, reductions in counts(case)] == [0, 0, 0, 0, 0, 1, 0]
    assert two_ranks.run(case).status is Status.PASS


def test_nothing_is_known_of_a_list_group_that_holds_a_member_of_its_own() -> None:
    block = Block(
        children=children(a=Alias(target="a"), inner=Linear(out=5)),
        nodes=(call("h0", "a", "x"), call("h1", "inner", "h0")),
        outputs=("h1",),
    )
    model = chain(a=Linear(out=5), b=block)
    case = make_case(model, ONCE, wrap=groups("b.inner", ("a", "b")))
    assert expected_communication(case, 0) == [None, None]


def test_nothing_is_known_of_a_compiled_model() -> None:
    case = make_case(schedule=ONCE, compile="eager")
    assert expected_communication(case, 0) == [None, None]


MLPS, MICROBATCHES = 3, 3
STACK = chain(lin=Linear(out=5), m0=MLP(hidden=5), m1=MLP(hidden=5), m2=MLP(hidden=5))


def accumulating(
    flag: Flag, targets: tuple[str, ...], *, reshard: bool | None, mesh: Mesh, rab: bool
) -> Case:
    """The schedule of upstream's ``test_gradient_accumulation``: three microbatches and a step."""
    recurse = targets != (ROOT, ROOT)
    flags: tuple[Flag, ...] = (flag,) if rab else (flag, "reshard_after_backward")
    ops: list[Op] = []
    for i in range(MICROBATCHES):
        for f in flags:
            value = i == MICROBATCHES - 1
            ops += [
                SetFlag(flag=f, value=value, target=t, recurse=recurse)
                for t in dict.fromkeys(targets)
            ]
        ops += [Forward(batch=i), BACKWARD]
    wrap = groups("m0", "m1", "m2", ROOT, reshard=reshard)
    return make_case(STACK, (*ops, STEP), mesh=mesh, wrap=wrap)


FLAT, HSDP = Mesh(shard=4), Mesh(replicate=2, shard=2)
ALL, SOME, ROOT_ONLY = (ROOT,), ("m0", "m1"), (ROOT, ROOT)


@pytest.mark.parametrize(
    ("targets", "reduced"),
    [
        (ALL, MLPS + 1),
        (SOME, MLPS + 1 + (MLPS - 2 + 1) * (MICROBATCHES - 1)),
        (ROOT_ONLY, MLPS + 1 + MLPS * (MICROBATCHES - 1)),
    ],
    ids=["all", "some_mlps", "root_only"],
)
@pytest.mark.parametrize("mesh", [FLAT, HSDP], ids=["1d", "hsdp"])
def test_gradient_accumulation_reduces_as_often_as_upstream_says(
    targets: tuple[str, ...], reduced: int, mesh: Mesh
) -> None:
    sync = counts(
        accumulating("requires_gradient_sync", targets, reshard=True, mesh=mesh, rab=True)
    )
    assert sum(c[1] for c in sync) == reduced
    assert sum(c[2] for c in sync) == (reduced if mesh == HSDP else 0)
    if mesh == HSDP:
        partial = counts(
            accumulating("requires_all_reduce", targets, reshard=True, mesh=mesh, rab=True)
        )
        assert sum(c[1] for c in partial) == (MLPS + 1) * MICROBATCHES
        assert sum(c[2] for c in partial) == reduced


@pytest.mark.parametrize(
    ("reshard", "rab", "targets", "gathered"),
    [
        (True, True, ALL, 24),
        (None, True, ALL, 21),
        (False, True, ALL, (MLPS + 1) * MICROBATCHES),
        (False, False, ALL, MLPS + 1),
        (False, False, ROOT_ONLY, MLPS + 1 + MLPS * (MICROBATCHES - 1)),
    ],
)
def test_gradient_accumulation_gathers_as_often_as_upstream_says(
    reshard: bool | None, rab: bool, targets: tuple[str, ...], gathered: int
) -> None:
    case = accumulating("requires_gradient_sync", targets, reshard=reshard, mesh=FLAT, rab=rab)
    assert sum(c[0] for c in counts(case)) == gathered


def test_hooks_are_on_what_a_group_without_parameters_casts(two_ranks: World) -> None:
    inner = Block(
        children=children(c=Linear(out=5)),
        nodes=(call("h", "c", "x0"),),
        inputs=("x0", "x1"),
        outputs=("h", "x1"),
        returns="tuple",
    )
    model = Block(
        children=children(a=Linear(out=5), m=inner),
        nodes=(call("h0", "a", "x"), call("h1", "m", "h0", "h0")),
        outputs=("h1.0",),
    )
    for precision, gathers in ((Precision(param="bfloat16"), (1, 1)), (None, (2, 2))):
        inside = WrapGroup(modules=("m.c",), precision=precision)
        outside = WrapGroup(modules=("m",), precision=precision, backward_prefetch=("m.c",))
        case = make_case(model, ONCE, wrap=(inside, outside))
        _, backward = expected_communication(case, 0)
        assert backward is not None
        assert backward.gathers == gathers
        assert two_ranks.run(case).status is Status.PASS


@pytest.mark.parametrize(
    ("output", "gathers"), [("float16", (1, 1)), ("float32", (2, 2)), (None, (2, 2))], ids=str
)
def test_hooks_of_an_outer_module_are_on_what_an_inner_one_casts(
    output: Dtype | None, gathers: tuple[int, int], two_ranks: World
) -> None:
    inner = Block(
        children=children(c=Linear(out=5), d=Linear(out=5)),
        nodes=(call("h", "c", "x"),),
        outputs=("h", "x"),
        returns="tuple",
    )
    model = Block(
        children=children(a=Linear(out=5), m=inner),
        nodes=(call("h0", "a", "x"), call("h1", "m", "h0")),
        outputs=("h1.0", "h1.1"),
        returns="tuple",
    )
    casting = WrapGroup(modules=("m",), precision=Precision(output=output))
    wrap = (*groups(("m.c", "m.d"), reshard=True), casting, *groups(ROOT))
    case = make_case(model, ONCE, wrap=wrap)
    _, backward = expected_communication(case, 0)
    assert backward is not None
    assert backward.gathers == gathers
    assert two_ranks.run(case, mends=mends_for()).status is Status.PASS


def test_a_prefetch_of_what_backward_does_not_need_may_gather_more() -> None:
    model = Block(
        children=children(a=Linear(out=5), b=Linear(out=3)),
        nodes=(call("h", "a", "x"), call("k", "b", "x")),
        outputs=("h", "k"),
        returns="tuple",
    )
    case = make_case(model, (Forward(outputs=(1,)), BACKWARD), wrap=groups("a", "b", ROOT))
    expected = expected_communication(case, 0)[1]
    assert expected is not None
    assert expected.gathers == (1, 2)


def recorded(*collectives: Collective) -> Trace:
    return Trace(engine="fully_shard", collectives=list(collectives))


GATHER = Collective(0, "all_gather", "all_gather_single", (60, 30), "float32")
PLAIN = make_case(schedule=(FORWARD,), wrap=groups(ROOT))


def test_another_number_of_collectives_is_a_finding() -> None:
    assert communication_findings(PLAIN, recorded(GATHER), 1) == []
    (finding,) = communication_findings(PLAIN, recorded(GATHER, GATHER), 1)
    assert (finding.oracle, finding.engine, finding.op) == ("communication", "fully_shard", 0)
    assert (finding.name, finding.observed, finding.expected) == ("all-gathers", "2", "1")


def test_another_size_is_a_finding() -> None:
    (finding,) = communication_findings(PLAIN, recorded(GATHER._replace(sizes=(56, 28))), 0)
    assert (finding.observed, finding.expected) == ("of 56 elements", "of 60 elements")


def test_what_is_left_to_the_user_is_not_the_engines() -> None:
    explicit = Collective(0, "all_reduce", "all_reduce", (3,), "float32", explicit=True)
    assert (
        communication_findings(make_case(schedule=(FORWARD,), wrap=()), recorded(explicit), 0)
        == []
    )
