"""Options of DDP: each trains as the plain module does where its documentation covers the case."""

from __future__ import annotations

from typing import Any

import pytest
from cases import AGAIN, BACKWARD, FORWARD, STEP, TWO_STEPS, ZERO, call, chain, children, make_case
from planting import fault_file

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case, Inputs, Mesh, Optimizer, TensorSpec
from fuzzshard.case.graph import Block
from fuzzshard.case.options import DDP
from fuzzshard.engines.ddp.script import arguments
from fuzzshard.engines.registry import engine_of, not_applicable
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.mlp import MLP
from fuzzshard.parts.leaves.norms import BatchNorm
from fuzzshard.parts.leaves.running_sum import RunningSum
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import Forward, SetFlag, SetMode, SetRequiresGrad, ZeroGrad
from fuzzshard.program.mesh import MeshNames
from fuzzshard.reproducer import script
from fuzzshard.training.trace import Trace
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig

NO_SYNC, SYNC = (SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True))
ACCUMULATING = (
    NO_SYNC,
    FORWARD,
    BACKWARD,
    SYNC,
    AGAIN,
    BACKWARD,
    STEP,
    ZERO,
    FORWARD,
    BACKWARD,
    STEP,
)
THREE_STEPS: tuple[Op, ...] = (*TWO_STEPS, ZeroGrad(set_to_none=False), FORWARD, BACKWARD, STEP)
UNUSED = Block(
    children=children(a=Linear(out=5), unused=Linear(out=5)),
    nodes=(call("h", "a", "x"),),
    outputs=("h",),
)
BUFFERS = chain(a=Linear(out=4), n=BatchNorm(), b=Linear(out=3))
ASSIGNED = chain(s=RunningSum(), a=Linear(out=4), n=RunningSum(persistent=False), b=Linear(out=3))
FREEZE = SetRequiresGrad(target="a", value=False)


def ddp(
    schedule: Any = THREE_STEPS, model: Block | None = None, *, case: Any = None, **options: Any
) -> Case:
    """A case of DDP and ``replicate`` with these options."""
    engines = ("ddp", "replicate")
    more = {"engines": engines, "optimizer": Optimizer(momentum=0.5), **(case or {})}
    return make_case(model, schedule, ddp=DDP(**options), **more)


OPTIONS: dict[str, dict[str, Any]] = {
    "no search for unused parameters": {"find_unused_parameters": False},
    "a static graph": {"static_graph": True},
    "a static graph and nothing else": {"static_graph": True, "find_unused_parameters": False},
    "gradients that are views": {"gradient_as_bucket_view": True},
    "unused parameters skipped": {"skip_all_reduce_unused_params": True},
    "a batched copy": {"batched_grad_copy": True},
    "buckets on demand": {"lazy_bucket_allocation": True},
    "buckets of one parameter": {"buckets": "one_each"},
    "buckets that are rebuilt": {"buckets": "one_each", "find_unused_parameters": False},
    "buckets of a few": {"buckets": "few_each"},
    "listed buckets": {"buckets": "listed"},
    "buffers left alone in forward": {"buffers": "forward_local"},
    "values of the first rank": {"initial": "first_rank"},
    "values that nobody synchronises": {"initial": "unsynced"},
    "a device mesh": {"device_mesh": True},
    "torch's hook": {"hook": "allreduce"},
    "a user's hook": {"hook": "average"},
    "a join context": {"join": "initial"},
    "a join context that divides by those left": {"join": "effective"},
    "a join context that throws": {"join": "throwing"},
    "a join context that is off": {"join": "off"},
    "manual finalization": {"manual_finalization": True},
    "outputs without a clone": {"uncloned_outputs": True},
    "outputs without a clone of a static graph": {"uncloned_outputs": True, "static_graph": True},
}
LACKED = ("this version of torch has no", "replicate() has no", "replicate() returns the module")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_it_trains_as_the_plain_module_does(two_ranks: World, options: dict[str, Any]) -> None:
    schedules = [THREE_STEPS] if options.get("static_graph") else [THREE_STEPS, ACCUMULATING]
    for schedule in schedules:
        verdict = two_ranks.run(ddp(schedule, **options))
        assert verdict.status is Status.PASS, (verdict.findings[:2], verdict.message)
        assert all(
            note.removeprefix("not applicable: ").startswith(LACKED)
            for note in verdict.notes.values()
        )


def test_outputs_are_not_cloned_where_ddp_looks_for_no_unused_parameters() -> None:
    case = ddp(uncloned_outputs=True, find_unused_parameters=False)
    excluded = not_applicable(case, "ddp")
    assert excluded is not None
    assert "not cloned anyway" in excluded.reason
    assert "._set_ddp_sink_clone(False)" in script(ddp(uncloned_outputs=True), signature="a/ddp/b")


@pytest.mark.parametrize("kind", ["broadcast", "forward_broadcast"])
@pytest.mark.parametrize("join", [None, "initial"])
@pytest.mark.parametrize("model", [BUFFERS, ASSIGNED], ids=["changed", "assigned"])
def test_buffers_are_those_of_the_first_rank_or_of_the_last_within_join(
    two_ranks: World, kind: str, join: str | None, model: Block
) -> None:
    schedule = (*ACCUMULATING, SetMode(train=False), FORWARD)
    case = ddp(schedule, model, case={"engines": ("ddp",)}, buffers=kind, join=join)
    verdict = two_ranks.run(case)
    assert verdict.status is Status.PASS, verdict.findings[:2]


@pytest.mark.parametrize("before", [(), (FORWARD, BACKWARD), (NO_SYNC,)])
def test_a_forward_past_ddp_neither_broadcasts_buffers_nor_puts_that_off(
    two_ranks: World, before: tuple[Op, ...]
) -> None:
    past = Forward(target="n", grad=False)
    case = ddp((*before, past, FORWARD), BUFFERS, case={"engines": ("ddp",)}, buffers="broadcast")
    verdict = two_ranks.run(case)
    assert verdict.status is Status.PASS, verdict.findings[:2]


def test_buffers_that_one_engine_broadcasts_have_no_common_reference() -> None:
    with pytest.raises(InvalidCase, match="DDP broadcasts buffers"):
        validate(ddp(model=BUFFERS, buffers="broadcast"))


@pytest.mark.parametrize("initial", ["equal", "first_rank"])
@pytest.mark.parametrize(
    "model", [None, chain(a=MLP(hidden=4), b=Linear(out=3))], ids=["linear", "mlp"]
)
def test_what_replicate_is_told_to_ignore_is_averaged_by_hand(
    two_ranks: World, model: Block | None, initial: str
) -> None:
    more = {"engines": ("replicate",), "ignored": ("a",)}
    verdict = two_ranks.run(
        ddp(ACCUMULATING, model, case=more, ignored_modules=True, initial=initial)
    )
    assert (verdict.status, verdict.notes) == (Status.PASS, {}), verdict.findings[:2]


EXCLUDED = {
    "a backward misses a parameter": ddp(model=UNUSED, find_unused_parameters=False),
    "a graph that changes": ddp((*TWO_STEPS, FREEZE, FORWARD, BACKWARD), static_graph=True),
    "unused parameters that may change": ddp(
        (*TWO_STEPS, FREEZE, FORWARD, BACKWARD), skip_all_reduce_unused_params=True
    ),
    "a mesh of two axes": ddp(case={"mesh": Mesh(replicate=2, shard=1)}, device_mesh=True),
    "used before the first forward": ddp((STEP, *TWO_STEPS), initial="first_rank"),
}


@pytest.mark.parametrize("why", EXCLUDED)
def test_what_the_documentation_excludes_is_not_judged(why: str) -> None:
    found = [not_applicable(EXCLUDED[why], engine) for engine in ("ddp", "replicate")]
    assert any(exclusion is not None and why in exclusion.reason for exclusion in found), found


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: True}, f"{name}=True")
        for name in ("static_graph", "gradient_as_bucket_view", "lazy_bucket_allocation")
    ),
    *(({n: True}, f"{n}=True") for n in ("skip_all_reduce_unused_params", "batched_grad_copy")),
    ({"buckets": "one_each"}, "bucket_cap_mb=1e-6"),
    ({"buckets": "listed"}, "bucket_cap_mb_list=[1e-4, 2e-5, 3e-4]"),
    ({"buffers": "broadcast"}, "broadcast_buffers=True"),
    ({"buffers": "forward_local"}, "forward_sync_buffers=False"),
    ({"initial": "unsynced"}, "init_sync=False"),
    ({"device_mesh": True}, "device_mesh=mesh"),
]


@pytest.mark.parametrize(("options", "expected"), ARGUMENTS, ids=lambda value: str(value))
def test_an_option_is_an_argument_of_the_constructor(
    options: dict[str, Any], expected: str
) -> None:
    given = arguments(ddp(**options), MeshNames(ddp(), within=True))
    assert expected in given
    assert ("process_group=group" in given) != ("device_mesh=mesh" in given)
    without = arguments(ddp(find_unused_parameters=False), MeshNames(ddp()))
    assert without == []


@pytest.mark.parametrize("scaler", [None, "default"])
def test_more_than_two_ranks_may_add_up_in_float16_in_any_order(scaler: Any) -> None:
    training: Any = {
        "schedule": (NO_SYNC, FORWARD, BACKWARD, SYNC, *THREE_STEPS),
        "mesh": Mesh(shard=4),
        "inputs": Inputs(batch=3, tensors=(TensorSpec(size=5),)),
        "optimizer": Optimizer(momentum=0.5, grad_scaler=scaler),
        "engines": ("ddp",),
    }
    case = make_case(chain(a=Linear(out=64), b=Linear(out=37)), ddp=DDP(hook="fp16"), **training)
    preload = (str(fault_file("ddp_adds_up_in_another_order")),)
    with World(WorldConfig(size=4, preload=preload)) as world:
        verdict = world.run(case)
    assert (verdict.status, verdict.comparison) == (Status.PASS, "bounded"), verdict


def test_a_static_graph_may_have_unused_parameters(two_ranks: World) -> None:
    verdict = two_ranks.run(ddp(model=UNUSED, static_graph=True, find_unused_parameters=False))
    assert (verdict.status, verdict.notes) == (Status.PASS, {}), verdict.findings[:2]


def test_a_forward_without_gradients_is_no_part_of_the_graph() -> None:
    evaluated = (Forward(grad=False), *TWO_STEPS)
    assert not_applicable(ddp(evaluated, static_graph=True), "ddp") is None


@pytest.mark.parametrize(("after", "compared"), [((), True), ((STEP,), False)])
def test_a_backward_that_differentiates_nothing_matters_to_a_step_alone(
    after: tuple[Op, ...], *, compared: bool
) -> None:
    case = make_case(schedule=(*ACCUMULATING[:6], *after), engines=("ddp",))
    reference = Trace()
    reference.skipped.append(5)
    assert (engine_of("ddp").not_comparable(case, reference) is None) is compared
