"""What fully_shard may communicate; that planted faults break it on real ranks is in
tests/planted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pytest
from cases import BACKWARD, FORWARD, ROOT, STEP, TWO_STEPS, ZERO, chain, graph, groups, make_case

from fuzzshard.case.case import Case, Checkpoint, Freeze, Mesh, WrapGroup
from fuzzshard.case.options import Precision
from fuzzshard.mending.mend import mends_for
from fuzzshard.oracles.communication import communication_findings
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import Backward, Forward, SetFlag
from fuzzshard.parts.oracles.registration import Registered
from fuzzshard.training.collectives import Collective
from fuzzshard.training.hooks import Hook
from fuzzshard.training.trace import Key, Registration, Trace
from fuzzshard.verdict import Status
from fuzzshard.world import World

ONCE: tuple[Op, ...] = (FORWARD, BACKWARD)
LAYER = chain(a=Linear(out=3, bias=False))
SHARD, WHOLE = 10, 20
"""The elements of five columns of three rows on two ranks: rows are padded to four."""
NO_SYNC, SYNC = (SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True))


def alone(
    schedule: tuple[Op, ...] = ONCE, reshard: bool | None = True, mesh: Mesh | int = 2
) -> Case:
    """One layer in one group, which is wrapped within a root that manages nothing."""
    return make_case(LAYER, schedule, mesh=mesh, wrap=groups("a", ROOT, reshard=reshard))


def gather(op: int, size: int = WHOLE, group: int = 0) -> Collective:
    return Collective(
        op, "all_gather", "all_gather_single", (size, size // 2), "float32", False, group
    )


def scatter(op: int, size: int = SHARD, dtype: str = "float32") -> Collective:
    return Collective(op, "reduce_scatter", "reduce_scatter_single", (size, 2 * size), dtype)


def recorded(*events: Collective | tuple[int, Literal["post_forward", "post_backward"]]) -> Trace:
    """What a run has recorded: collectives, and (op, hook) where the only group is done."""
    trace = Trace(engine="fully_shard")
    for event in events:
        if isinstance(event, Collective):
            trace.collectives.append(event)
        else:
            op, kind = event
            trace.hooks.append(Hook(op, 0, kind, place=len(trace.collectives)))
    return trace


def wrong(case: Case, trace: Trace) -> list[tuple[int, str, str, str]]:
    found = communication_findings(case, trace, 0)
    return [(f.op, f.name, f.observed, f.expected) for f in found]


def test_a_group_gathers_for_its_forward_and_again_for_its_backward() -> None:
    run = recorded(gather(0), (0, "post_forward"), gather(1), (1, "post_backward"), scatter(1))
    assert wrong(alone(), run) == []


def test_a_group_that_keeps_its_parameters_does_not_gather_them_again() -> None:
    run = recorded(gather(0), (0, "post_forward"), gather(1), (1, "post_backward"), scatter(1))
    assert wrong(alone(reshard=False), run) == [(1, "all-gathers", "1", "at most 0")]


def test_a_group_does_not_gather_twice_for_one_forward() -> None:
    run = recorded(gather(0), gather(0), (0, "post_forward"))
    assert wrong(alone((FORWARD,)), run) == [(0, "all-gathers", "2", "at most 1")]


def test_what_is_recomputed_is_not_done_and_keeps_what_it_gathered() -> None:
    run = recorded(
        *(gather(0), (0, "post_forward"), gather(1), (1, "post_forward"), gather(1)),
        *((1, "post_backward"), scatter(1)),
    )
    assert wrong(alone(), run) == [(1, "all-gathers", "2", "at most 1")]


def test_a_group_gathers_again_after_each_of_several_post_backwards() -> None:
    run = recorded(
        *(gather(0), (0, "post_forward"), gather(0), (0, "post_forward")),
        *(gather(1), (1, "post_backward"), gather(1), (1, "post_backward"), scatter(1)),
    )
    assert wrong(alone(), run) == []


def test_a_flag_that_keeps_parameters_after_backward_leaves_nothing_to_gather() -> None:
    kept = SetFlag(flag="reshard_after_backward", value=False)
    run = recorded(
        *(gather(1), (1, "post_forward"), gather(2), (2, "post_backward"), scatter(2)),
        *(gather(3), (3, "post_forward")),
    )
    assert wrong(alone((kept, *ONCE, FORWARD)), run) == [(3, "all-gathers", "1", "at most 0")]


def test_what_is_registered_sharded_may_be_gathered() -> None:
    sharded = Registration("DTensor", ("S(0)",), (2,), (3, 5), "float32", True)
    run = recorded(gather(0), (0, "post_forward"), gather(1), (1, "post_backward"), scatter(1))
    run.registrations[Key(0, Registered.name, "a.weight")] = sharded
    assert wrong(alone(reshard=False), run) == []


def test_a_group_gathers_all_of_its_elements_and_no_others() -> None:
    run = recorded(gather(0, size=16), (0, "post_forward"))
    assert wrong(alone((FORWARD,)), run) == [(0, "all-gathers", "16 elements", "20 elements")]


def test_nobody_gathers_but_a_group() -> None:
    run = recorded(gather(0), gather(0, group=-1), (0, "post_forward"))
    assert wrong(alone((FORWARD,)), run) == [(0, "all-gathers", "2", "at most 1")]


@pytest.mark.parametrize(
    ("scattered", "observed"),
    [((), "0 elements"), ((SHARD, SHARD), "20 elements"), ((8,), "8 elements")],
    ids=["none", "twice", "less"],
)
def test_a_backward_reduces_every_gradient_once(scattered: tuple[int, ...], observed: str) -> None:
    run = recorded(gather(0), (0, "post_forward"), gather(1), (1, "post_backward"))
    run.collectives += [scatter(1, size) for size in scattered]
    assert wrong(alone(), run) == [(1, "reduce-scatters", observed, "10 elements")]


def test_replicas_reduce_what_their_shards_have_reduced() -> None:
    reduce = Collective(1, "all_reduce", "all_reduce", (SHARD,), "float32")
    case = alone(mesh=Mesh(replicate=2, shard=2))
    run = recorded(gather(0), (0, "post_forward"), gather(1), (1, "post_backward"), scatter(1))
    assert wrong(case, run) == [(1, "all-reduces", "0 elements", "10 elements")]
    run.collectives.append(reduce)
    assert wrong(case, run) == []


def test_a_frozen_parameter_is_not_reduced() -> None:
    case = make_case(LAYER, ONCE, wrap=groups("a", ROOT), freezes=(Freeze(target="a"),))
    run = recorded(gather(0), (0, "post_forward"), (1, "post_backward"))
    assert wrong(case, run) == []
    run.collectives.append(scatter(1))
    assert wrong(case, run) == [(1, "reduce-scatters", "10 elements", "0 elements")]


def test_nothing_is_reduced_without_synchronisation() -> None:
    case = alone((NO_SYNC, *ONCE))
    run = recorded(gather(1), (1, "post_forward"), gather(2), (2, "post_backward"))
    assert wrong(case, run) == []
    run.collectives.append(scatter(2))
    assert wrong(case, run) == [(2, "reduce-scatters", "10 elements", "0 elements")]


@pytest.mark.parametrize(("times", "right"), [(0, False), (1, True), (2, True), (3, False)])
def test_what_waited_for_a_reduction_may_be_reduced_by_itself(times: int, right: bool) -> None:
    case = alone((NO_SYNC, *ONCE, SYNC, *ONCE), reshard=False)
    run = recorded(
        gather(1), (1, "post_forward"), (2, "post_backward"), gather(4), (4, "post_forward")
    )
    run.collectives += [scatter(5)] * times
    run.hooks += [Hook(5, 0, place=len(run.collectives))] * times
    observed = f"{times * SHARD} elements"
    expected = [] if right else [(5, "reduce-scatters", observed, "10 to 20 elements")]
    assert wrong(case, run) == expected


def test_a_post_backward_reduces_once() -> None:
    case = alone((NO_SYNC, *ONCE, SYNC, *ONCE), reshard=False)
    run = recorded(
        *(gather(1), (1, "post_forward"), (2, "post_backward"), gather(4), (4, "post_forward")),
        *((5, "post_backward"), scatter(5), scatter(5)),
    )
    assert wrong(case, run) == [(5, "reduce-scatters", "2", "at most 1")]


def test_gradients_are_reduced_in_the_dtype_of_the_policy() -> None:
    precision = Precision(param="bfloat16", reduce="float32")
    wrap = (WrapGroup(modules=("a",), precision=precision), *groups(ROOT))
    case = make_case(LAYER, ONCE, wrap=wrap)
    run = recorded(gather(0), (0, "post_forward"), gather(1), (1, "post_backward"))
    run.collectives.append(scatter(1))
    assert wrong(case, run) == []
    run.collectives[-1] = scatter(1, dtype="bfloat16")
    assert wrong(case, run) == [(1, "reduce-scatters", "bfloat16", "float32")]


def test_a_third_equal_iteration_communicates_as_the_second() -> None:
    def gathered(*orders: tuple[int, int]) -> list[tuple[int, str, str, str]]:
        case = make_case(
            schedule=(Forward(grad=False), STEP) * len(orders), wrap=groups("a", "b", reshard=True)
        )
        sizes: Mapping[int, int] = {0: 36, 1: 24}
        run = recorded()
        for index, order in enumerate(orders):
            for group in order:
                run.collectives.append(gather(2 * index, sizes[group], group))
                run.hooks.append(
                    Hook(2 * index, group, "post_forward", place=len(run.collectives))
                )
        return wrong(case, run)

    assert gathered((1, 0), (0, 1), (0, 1)) == []
    assert gathered((0, 1), (0, 1), (1, 0)) == [
        (4, "all-gathers", "of 24, 36 elements", "of 36, 24 elements")
    ]


def test_what_is_left_to_the_user_is_not_the_engines() -> None:
    explicit = Collective(0, "all_gather", "all_gather", (3,), "float32", explicit=True)
    assert wrong(make_case(schedule=(FORWARD,), wrap=()), recorded(explicit)) == []
    assert wrong(alone((FORWARD,)), recorded(explicit, gather(0))) == []


TWICE = graph("h = a(x)", "k = a(h)", "y = b(k)", a=Linear(out=5), b=Linear(out=3))
SIDE_BY_SIDE = graph(
    "h = a(x)", "k = b(x)", "d = detach(h)", "y = mul(k, d)", a=Linear(out=4), b=Linear(out=4)
)
RETURNS_ITS_INPUT = graph("h = c(x)", outputs="h x", returns="tuple", c=Linear(out=3))
ALONE = ("fully_shard",)
WHOLE_MODEL = (Checkpoint(module="", implementation="utils"),)
ACCUMULATED = (NO_SYNC, *ONCE, SYNC, FORWARD, FORWARD, BACKWARD, STEP)

RIGHT = {
    "a module is called twice": make_case(TWICE, TWO_STEPS, wrap=groups("a", ROOT, reshard=True)),
    "a backward for each of two forwards": make_case(
        schedule=(FORWARD, FORWARD, Backward(which="oldest"), BACKWARD, ZERO, FORWARD)
    ),
    "two forwards after one without synchronisation": make_case(
        TWICE, ACCUMULATED, wrap=groups("a", ROOT, reshard=True)
    ),
    "a recomputation": make_case(
        schedule=TWO_STEPS, wrap=groups("a", "b", ROOT), checkpoints=WHOLE_MODEL, engines=ALONE
    ),
    "a recomputation that stops before it comes to a group": make_case(
        SIDE_BY_SIDE,
        (*ONCE, FORWARD),
        wrap=(
            *groups("a"),
            WrapGroup(modules=("b",), backward_prefetch=("a", "")),
            *groups(ROOT),
        ),
        checkpoints=(Checkpoint(module=""),),
    ),
    "a recomputation after the post-backward": make_case(
        graph("h = a(x)", "k = b(h)", outputs="k.1", a=Linear(out=3), b=RETURNS_ITS_INPUT),
        (*ONCE, FORWARD),
        wrap=groups("b", ROOT),
        checkpoints=WHOLE_MODEL,
        engines=ALONE,
    ),
    "half of a list group": make_case(
        chain(a=Linear(out=5, bias=False), r=Activation()),
        (NO_SYNC, *ONCE, SYNC, Forward(target="a"), BACKWARD, STEP),
        wrap=groups(("a", "r"), ROOT),
        mesh=Mesh(replicate=2, shard=1),
        finalize="wait",
    ),
    "prefetching of what is not needed": make_case(
        graph(
            "h = a(x)",
            "k = b(x)",
            outputs="h k",
            returns="tuple",
            a=Linear(out=5),
            b=Linear(out=3),
        ),
        (Forward(outputs=(1,)), BACKWARD, FORWARD, BACKWARD),
        wrap=groups("a", "b", ROOT),
    ),
}


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT.keys())
def test_torch_communicates_as_it_must(two_ranks: World, case: Case) -> None:
    verdict = two_ranks.run(case, mends=mends_for())
    assert verdict.status is Status.PASS, verdict.findings[:3]
