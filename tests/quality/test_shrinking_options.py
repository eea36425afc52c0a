"""Of a case that uses every option there is, only the one that a failure needs is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cases import BACKWARD, STEP, ZERO, chain, graph, make_case
from shrinking import minimal

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import (
    Case,
    Checkpoint,
    Freeze,
    Inputs,
    Mesh,
    Optimizer,
    TensorSpec,
    WrapGroup,
)
from fuzzshard.case.graph import Call, walk
from fuzzshard.case.options import FSDP1, Delay, ParameterDtype, Precision, TensorParallel
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.part import off_default

INNER = graph(
    "h = first(x0)",
    "g = second(h)",
    outputs="g h",
    inputs="x0 x1",
    first=Linear(out=4),
    second=Linear(out=4),
    passing="dataclass",
    returns="namedtuple",
    method="features",
)
MODEL = graph(
    "a = inner(x, x)",
    Call(name="b", module="left", args=("a.0",), alternatives=("right",)),
    "c = last(b)",
    inner=INNER,
    left=Linear(out=4),
    right=Linear(out=4),
    last=chain(deep=Linear(out=4)),
)
RICH = make_case(
    MODEL,
    (
        ops.TakeStateDict(),
        ops.Unshard(async_op=True),
        ops.Forward(),
        ops.Reshard(),
        BACKWARD,
        ops.ClipGradNorm(max_norm=1.0),
        STEP,
        ZERO,
        ops.SetPath(path=1),
        ops.SaveState(via="state_dict"),
        ops.CorruptState(),
        ops.LoadState(assign=True),
        ops.SetDivideFactor(factor=2.0),
        ops.Cast(dtype="float32"),
        ops.Forward(batch=1),
        BACKWARD,
        STEP,
    ),
    mesh=Mesh(shard=2, tensor=2),
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),), same_on_ranks=True),
    wrap=(
        WrapGroup(
            modules=("inner",),
            precision=Precision(param="bfloat16", reduce="float32", output="float32"),
        ),
        WrapGroup(modules=("left",), forward_prefetch=("inner",), shard_dim="last"),
        WrapGroup(modules=("",), offload="unpinned", all_gather_extension="signs_apart"),
    ),
    checkpoints=(Checkpoint(module="last", implementation="utils"),),
    freezes=(Freeze(target="inner.first", after_wrap=True),),
    optimizer=Optimizer(
        kind="adam",
        foreach=False,
        exclude=("right",),
        post_optim_event=True,
        maximize=True,
        lr_scheduler="one_cycle_lr",
    ),
    dtypes=(ParameterDtype(target="inner.first", dtype="bfloat16"),),
    tensor_parallel=(TensorParallel(module="last.deep", style="colwise", output="replicate"),),
    ignored=("right.bias",),
    compile="eager",
    delays=(Delay(site="before_step", milliseconds=2.0),),
    fsdp1=FSDP1(use_orig_params=True),
    engines=("fully_shard", "replicate"),
)

NEEDS: dict[str, Callable[[Case], bool]] = {
    "a precision policy": lambda case: any(g.precision and g.precision.param for g in case.wrap),
    "a prefetch list": lambda case: any(g.forward_prefetch for g in case.wrap),
    "CPU offload": lambda case: any(g.offload for g in case.wrap),
    "another shard dim": lambda case: any(g.shard_dim == "last" for g in case.wrap),
    "an all-gather extension": lambda case: any(g.all_gather_extension for g in case.wrap),
    "a frozen parameter of another dtype": lambda case: bool(case.dtypes and case.freezes),
    "tensor parallelism": lambda case: case.mesh.tensor == 2,
    "an ignored parameter": lambda case: bool(case.ignored),
    "compile": lambda case: case.compile is not None,
    "a delay": lambda case: bool(case.delays),
    "a dataclass": lambda case: any(
        getattr(m, "passing", "") == "dataclass" for _, m in walk(case.model)
    ),
    "a method": lambda case: any(
        getattr(m, "method", "") == "features" for _, m in walk(case.model)
    ),
    "another path": lambda case: any(isinstance(op, ops.SetPath) for op in case.schedule),
    "a loaded state": lambda case: any(isinstance(op, ops.LoadState) for op in case.schedule),
    "a cast": lambda case: any(isinstance(op, ops.Cast) for op in case.schedule),
    "a divide factor": lambda case: any(
        isinstance(op, ops.SetDivideFactor) for op in case.schedule
    ),
    "a post-optimizer event": lambda case: case.optimizer.post_optim_event,
    "steps up the gradient": lambda case: case.optimizer.maximize,
    "a scheduler": lambda case: case.optimizer.lr_scheduler is not None,
    "an excluded parameter": lambda case: bool(case.optimizer.exclude),
}
MOST_OPTIONS = 3
"""What a need may keep besides itself: the parts that it cannot be without."""


def count_options(case: Case) -> int:
    """Options that are not at their default, without the schedule, the model and the engine."""
    always = {"schedule", "wrap", "engines"}
    return len(set(off_default(case)) - always) + sum(len(list(off_default(g))) for g in case.wrap)


@pytest.mark.parametrize("need", NEEDS)
def test_only_the_option_that_is_needed_is_left(need: str) -> None:
    validate(RICH)
    case = minimal(NEEDS[need], RICH).case
    assert count_options(case) <= MOST_OPTIONS
    assert len(case.schedule) <= 4
    assert len([path for path, _ in walk(case.model)]) <= 4


ONE_OF: dict[str, tuple[Case, Callable[[Case], object]]] = {
    "a strategy of FSDP1": (
        make_case(
            mesh=Mesh(replicate=2, shard=1),
            fsdp1=FSDP1(strategy="hybrid_shard_zero2"),
            engines=("fsdp1",),
        ),
        lambda case: case.fsdp1.strategy if case.fsdp1.strategy.startswith("hybrid") else None,
    ),
    "the dtype of a policy": (
        make_case(wrap=(WrapGroup(modules=("",), precision=Precision(param="bfloat16")),)),
        lambda case: next((g.precision.param for g in case.wrap if g.precision), None),
    ),
    "the dtype of FSDP1's policy": (
        make_case(fsdp1=FSDP1(precision=Precision(param="bfloat16")), engines=("fsdp1",)),
        lambda case: case.fsdp1.precision and case.fsdp1.precision.param,
    ),
    "how a module is checkpointed": (
        make_case(checkpoints=(Checkpoint(module="a"),)),
        lambda case: next((c.implementation for c in case.checkpoints), None),
    ),
    "an option of collectives": (
        make_case(
            wrap=(WrapGroup(modules=("",), communication=("two_buffers", "allocate", "hook")),)
        ),
        lambda case: next((g.communication for g in case.wrap if g.communication), None),
    ),
    "an optimizer": (
        make_case(optimizer=Optimizer(kind="adamw")),
        lambda case: case.optimizer.kind if case.optimizer.kind != "sgd" else None,
    ),
}
SMALLEST = {
    "a strategy of FSDP1": "hybrid_shard",
    "the dtype of a policy": "float16",
    "the dtype of FSDP1's policy": "float16",
    "how a module is checkpointed": "utils",
    "an option of collectives": ("sum",),
    "an optimizer": "adam",
}


@pytest.mark.parametrize("choice", ONE_OF)
def test_of_several_values_that_would_do_the_smallest_case_has_the_same(choice: str) -> None:
    case, value = ONE_OF[choice]
    assert (
        value(minimal(lambda candidate: value(candidate) is not None, case).case)
        == SMALLEST[choice]
    )
