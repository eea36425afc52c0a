"""The options of ``fully_shard`` and the ops on wrapped modules, on real ranks of stock torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
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
from msgspec.structs import replace

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import (
    Case,
    Checkpoint,
    Freeze,
    Inputs,
    Mesh,
    Optimizer,
    TensorSpec,
    Tie,
    WrapGroup,
)
from fuzzshard.case.graph import Block
from fuzzshard.case.options import Delay, DelaySite, Precision
from fuzzshard.errors import InvalidCase, UsageError
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.embedding import Embedding
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.raw_parameter import RawParameter
from fuzzshard.parts.op import Op
from fuzzshard.parts.options.communication import CommunicationOption
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig

HSDP = Mesh(replicate=2, shard=2)
ONCE: tuple[Op, ...] = (FORWARD, BACKWARD, STEP)
CLIPPED: tuple[Op, ...] = (FORWARD, BACKWARD, ops.ClipGradNorm(max_norm=0.1), STEP)
EVEN = chain(a=Linear(out=8), r=Activation(), b=Linear(out=4))
"""Every dimension of every parameter, with inputs of width 4, is a multiple of 4."""


def configured(*modules: str, **options: Any) -> tuple[WrapGroup, ...]:
    """One wrap group for each path, all with the same options."""
    return tuple(WrapGroup(modules=(module,), **options) for module in modules)


def flag(name: Any, value: bool, target: str = ROOT) -> ops.SetFlag:
    return ops.SetFlag(flag=name, value=value, target=target)


def called_by(method: str) -> Block:
    """Two linear layers in a method that is not ``forward``."""
    block = chain(a=Linear(out=4), b=Linear(out=4))
    return replace(block, method=method)


TIED = {"ties": (Tie(parameter="b.weight", source="a.weight"),)}

EMBEDDED = chain(e=Embedding(vocab=8, dim=4), r=Activation(), b=Linear(out=3))
PARTLY_USED = Block(
    children=children(a=Linear(out=5), b=Linear(out=3), c=Linear(out=3)),
    nodes=(call("h", "a", "x"), call("y", "b", "h"), call("z", "c", "h")),
    outputs=("y", "z"),
    returns="tuple",
)
IDS = Inputs(batch=2, seq=3, tensors=(TensorSpec(kind="ids", size=6),))
UNUSED = (
    *(ops.Forward(outputs=(0,)), BACKWARD, STEP),
    *(ZERO, ops.Forward(batch=1, outputs=(1,)), BACKWARD, STEP, ops.Forward(batch=2, grad=False)),
)
"""The first backward gives ``c`` no gradient, the second one gives none to ``b``."""
DECAYING = Optimizer(kind="adamw", lr=0.01, weight_decay=0.1)


def told(*communication: CommunicationOption, **options: Any) -> Case:
    """Every group has been told the same."""
    groups = tuple(WrapGroup(modules=(m,), communication=communication) for m in ("a", "b", ROOT))
    return make_case(**{"wrap": groups, **options})


TOLD: dict[str, Case] = {
    "reduce-scatters in a group of their own, on an hsdp mesh": told("separate_group", mesh=HSDP),
    "unsharded memory that is kept, sharded to a smaller mesh": make_case(
        EVEN, wrap=configured("a", ROOT, communication=("keep_storage",), reshard_after_forward=2),
        inputs=float_inputs(4), mesh=4,
    ),
    "an embedding sharded to a smaller mesh and not unsharded in backward": make_case(
        EMBEDDED,
        wrap=(
            WrapGroup(
                modules=("e",), communication=("no_backward_unshard",), reshard_after_forward=2
            ),
            *groups("b", ROOT),
        ),
        inputs=IDS, mesh=4,
    ),
    "zeros for some parameters without a gradient": make_case(
        PARTLY_USED, UNUSED,
        wrap=(*groups("b"), *configured("c", ROOT, communication=("zeros_for_unused",))),
        optimizer=DECAYING, mesh=HSDP,
    ),
    "zeros after backwards that do not synchronise": make_case(
        PARTLY_USED,
        (
            *(flag("requires_gradient_sync", False), ops.Forward(outputs=(0,)), BACKWARD),
            *(flag("requires_gradient_sync", True), ops.Forward(outputs=(0,)), BACKWARD, STEP),
        ),
        wrap=configured("a", "b", "c", ROOT, communication=("zeros_for_unused",)),
        optimizer=DECAYING,
    ),
    "no zeros for frozen parameters, nor for what never ran": make_case(
        PARTLY_USED, (ops.Forward(target="a"), BACKWARD, STEP),
        wrap=configured("a", "b", "c", communication=("zeros_for_unused",)),
        freezes=(Freeze(target="a.bias"),),
        optimizer=DECAYING,
    ),
}  # fmt: skip

FINALIZED: dict[str, Case] = {
    f"backward finalized by hand, {how}, on an hsdp mesh": make_case(
        schedule=(
            *(flag("requires_gradient_sync", False), FORWARD, BACKWARD),
            *(flag("requires_gradient_sync", True), AGAIN, BACKWARD, STEP),
        ),
        finalize=how,
        mesh=HSDP,
    )
    for how in ("wait", "async")
} | {
    "what waits is reduced where a backward is finalized that reaches no group": make_case(
        schedule=(
            *(flag("requires_gradient_sync", False), FORWARD, BACKWARD),
            *(flag("requires_gradient_sync", True), ops.Forward(target="a"), BACKWARD, STEP),
        ),
        wrap=groups("b", ROOT),
        ignored=("a",),
        finalize="wait",
        mesh=2,
    )
}
KEPT = make_case(
    chain(a=Linear(out=5, bias=False), s=RawParameter(), b=Linear(out=3, bias=False)),
    wrap=configured(
        *("a", "s", "b", ROOT),
        precision=Precision(param="bfloat16", keep="vectors", output="float32"),
    ),
)
"""A scale stays in float32, and is multiplied with what is in bfloat16."""

OPTIONS: dict[str, Case] = {
    **TOLD,
    **FINALIZED,
    "offloaded parameters on an hsdp mesh": make_case(
        wrap=configured("a", "b", ROOT, offload="unpinned"),
        mesh=HSDP,
        optimizer=Optimizer(kind="adam"),
    ),
    "sharded along the largest dimension": make_case(
        EVEN, wrap=configured("a", "b", ROOT, shard_dim="largest"), inputs=float_inputs(12), mesh=4
    ),
    "sharded along the last dimension of an hsdp mesh": make_case(
        EVEN, wrap=configured(ROOT, shard_dim="last"), inputs=float_inputs(4), mesh=HSDP
    ),
    "an ignored parameter without gradient sync": make_case(
        schedule=(
            *(flag("requires_gradient_sync", False), FORWARD, BACKWARD),
            *(flag("requires_gradient_sync", True), AGAIN, BACKWARD, STEP),
        ),
        ignored=("a",),
    ),
    "uneven shards built on the meta device": make_case(init="meta", mesh=4),
    "tied weights built on the meta device": make_case(
        chain(a=Linear(out=5), b=Linear(out=5)), wrap=groups(ROOT), init="meta", **TIED
    ),
    "offloaded parameters built on the meta device": make_case(
        init="meta", wrap=configured("a", "b", ROOT, offload="unpinned")
    ),
    "checkpoint wrappers over a tie, built on the meta device": make_case(
        chain(a=Linear(out=5), b=Linear(out=5)),
        wrap=groups(ROOT),
        checkpoints=(Checkpoint(module="b", implementation="wrapper"),),
        init="meta",
        **TIED,
    ),
    "checkpoint wrappers over an ignored parameter beside offloaded ones, on the meta device": (
        make_case(
            wrap=configured(ROOT, offload="unpinned"),
            checkpoints=(Checkpoint(module="a", implementation="wrapper"),),
            ignored=("a.weight",),
            init="meta",
        )
    ),
    "an event after every step": make_case(
        optimizer=Optimizer(kind="adam", post_optim_event=True)
    ),
    "an event for several roots": make_case(
        optimizer=Optimizer(post_optim_event=True), wrap=groups("a", "b")
    ),
    "a forward of a part that is called by a method": make_case(
        chain(m=called_by("features"), c=Linear(out=2)),
        (*TWO_STEPS, ZERO, ops.Forward(target="m"), BACKWARD, STEP),
        wrap=groups("m", "c", ROOT),
    ),
}


@pytest.mark.parametrize("case", OPTIONS.values(), ids=OPTIONS.keys())
def test_stock_torch_passes_with(four_ranks: World, case: Case) -> None:
    verdict = four_ranks.run(case)
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
    if lacks(case):
        assert verdict.notes["fully_shard"].startswith(
            "not applicable: this version of torch has no"
        )
        return
    assert "fully_shard" not in verdict.notes
    if case.mesh.size <= 2:
        assert verdict.comparison == "bitwise"


def lacks(case: Case) -> bool:
    """Whether the installed torch has no method for an option of the case."""
    from fuzzshard.engines.fully_shard.options import lacking

    return lacking(case) is not None


SCHEDULES: dict[str, Case] = {
    "a divide factor for one group": make_case(
        schedule=(ops.SetDivideFactor(factor=0.5, target="a"), *TWO_STEPS)
    ),
    "a divide factor where nothing is reduced": make_case(
        schedule=(ops.SetDivideFactor(factor=3.0), *TWO_STEPS), mesh=1
    ),
    "a divide factor on an hsdp mesh": make_case(
        schedule=(
            *(
                ops.SetDivideFactor(factor=3.0),
                flag("requires_all_reduce", False),
                FORWARD,
                BACKWARD,
            ),
            *(flag("requires_all_reduce", True), AGAIN, BACKWARD, STEP),
        ),
        mesh=HSDP,
    ),
    "reshard between forward and backward": make_case(
        schedule=(FORWARD, ops.Reshard(), ops.Unshard(target="b"), BACKWARD, STEP, FORWARD),
        wrap=groups("a", "b", ROOT, reshard=False),
    ),
    "unshard of what is resharded to a smaller mesh": make_case(
        EVEN,
        (FORWARD, ops.Unshard(), BACKWARD, STEP, FORWARD, ops.Reshard(target="a"), BACKWARD),
        wrap=groups("a", "b", ROOT, reshard=2),
        inputs=float_inputs(4),
        mesh=4,
    ),
    "clipped gradients of four ranks": make_case(schedule=(*CLIPPED, ZERO, *CLIPPED), mesh=4),
    "clipped gradients on an hsdp mesh": make_case(
        schedule=CLIPPED, mesh=HSDP, optimizer=Optimizer(kind="adam")
    ),
    "gradients clipped by a norm that was taken before": make_case(
        schedule=(FORWARD, BACKWARD, ops.ClipGradNorm(max_norm=0.1, apart=True), STEP), mesh=HSDP
    ),
    "gradients clipped by their sum": make_case(
        schedule=(FORWARD, BACKWARD, ops.ClipGradNorm(max_norm=0.1, norm_type=1.0), STEP)
    ),
}


@pytest.mark.parametrize(
    ("wrap", "backend"),
    [
        pytest.param(groups(ROOT), "aot_eager", id="root-aot_eager"),
        pytest.param(groups("a", "b", ROOT), "eager", id="every layer-eager"),
        pytest.param(groups(ROOT), "eager", id="root-eager", marks=pytest.mark.slow),
        pytest.param(
            groups("a", "b", ROOT),
            "aot_eager",
            id="every layer-aot_eager",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_compiled_root_computes_the_same(
    two_ranks: World, wrap: tuple[WrapGroup, ...], backend: Any
) -> None:
    verdict = two_ranks.run(
        make_case(compile=backend, wrap=wrap, optimizer=Optimizer(kind="adam"))
    )
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)


@pytest.mark.parametrize("case", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_stock_torch_passes(four_ranks: World, case: Case) -> None:
    verdict = four_ranks.run(case)
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
    assert "fully_shard" not in verdict.notes


@pytest.mark.parametrize("site", get_args(DelaySite))
def test_a_delay_takes_its_time_and_changes_nothing(four_ranks: World, site: DelaySite) -> None:
    case = make_case(
        schedule=ONCE,
        mesh=HSDP,
        engines=("fully_shard",),
        delays=(Delay(site=site, milliseconds=400),),
    )
    verdict = four_ranks.run(case)
    assert verdict.status is Status.PASS
    assert verdict.seconds >= 0.4


NEEDS_CUDA = {
    "pinned memory": make_case(wrap=configured(ROOT, offload="pinned")),
    "inputs on the host": make_case(inputs=replace(float_inputs(), on_host=True)),
    "Inductor": make_case(compile="inductor"),
}


@pytest.mark.parametrize(("reason", "case"), NEEDS_CUDA.items(), ids=NEEDS_CUDA.keys())
def test_what_needs_cuda_is_told_in_one_line(four_ranks: World, reason: str, case: Case) -> None:
    with pytest.raises(UsageError, match=f"{reason}.* need.* CUDA.*; use --device cuda"):
        four_ranks.run(case)


NO_EXPERIMENTS = {
    "cannot be used together": make_case(
        wrap=configured(ROOT, communication=("custom_gather", "allocate"))
    ),
    "should only be set if not using native HSDP": make_case(
        wrap=configured(ROOT, communication=("hook_stream",)), mesh=HSDP
    ),
    "for parameters that backward does not need": make_case(
        wrap=configured("a", communication=("no_backward_unshard",))
    ),
    "aborted while a forward is pending": make_case(
        schedule=(FORWARD, ops.Abort(target="a"), BACKWARD)
    ),
    "Do not call it between forward and backward": make_case(
        schedule=(FORWARD, AGAIN, ops.Backward(which="oldest"), BACKWARD), finalize="wait"
    ),
    "Partial gradient reduction": make_case(
        schedule=(flag("requires_all_reduce", False), *TWO_STEPS), mesh=HSDP, finalize="async"
    ),
    "param_dtype_override_fn names a dtype once": replace(
        KEPT, schedule=(ops.Cast(dtype="float64"), *TWO_STEPS)
    ),
    "cannot be sharded evenly over 2 ranks on dim 1": make_case(
        wrap=configured(ROOT, shard_dim="last")
    ),
    "with fsdp_pre_all_gather are resharded to a smaller mesh": make_case(
        wrap=configured(ROOT, all_gather_extension="negated", reshard_after_forward=2), mesh=4
    ),
    "engines do not move tensors inside a dataclass": make_case(
        replace(chain(a=Linear(out=4)), passing="dataclass"),
        inputs=replace(float_inputs(), on_host=True),
    ),
    "a checkpoint of 'm' would not see its 'features'": make_case(
        chain(m=called_by("features")), checkpoints=(Checkpoint(module="m"),)
    ),
    "a divide factor changes while gradients are reduced over one axis": make_case(
        schedule=(
            flag("requires_all_reduce", False),
            FORWARD,
            BACKWARD,
            ops.SetDivideFactor(factor=2.0),
        ),
        mesh=HSDP,
    ),
}


@pytest.mark.parametrize(("reason", "case"), NO_EXPERIMENTS.items(), ids=NO_EXPERIMENTS.keys())
def test_what_is_no_experiment_is_refused(reason: str, case: Case) -> None:
    with pytest.raises(InvalidCase, match=reason):
        validate(case)


AS_NCCL_ALLOCATES = """
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives


def apply():
    started, barrier, allocate = set(), dist.barrier, collectives.ProcessGroupAllocMixin.allocate

    def first(group=None, device_ids=None):
        started.add(group)
        return barrier(group=group, device_ids=device_ids)

    def allocated(self, *args, **kwargs):
        if self._group not in started:
            raise dist.DistBackendError(
                "communicator has not been initialized before mem pool creation"
            )
        return allocate(self, *args, **kwargs)

    dist.barrier, collectives.ProcessGroupAllocMixin.allocate = first, allocated
"""


def test_a_process_group_that_allocates_has_a_communicator_first(tmp_path: Path) -> None:
    preload = tmp_path / "as_nccl_allocates.py"
    preload.write_text(AS_NCCL_ALLOCATES)
    case = make_case(mesh=1, wrap=configured("a", ROOT, communication=("allocate",)))
    with World(WorldConfig(size=1, preload=(str(preload),))) as world:
        assert world.run(case).status is Status.PASS
