"""Cases with the options of engines that tests of the reproducer share."""

from __future__ import annotations

from cases import graph
from msgspec.structs import replace
from small_cases import SMALL, chain

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
from fuzzshard.case.graph import Call
from fuzzshard.case.options import (
    DDP,
    FSDP1,
    Delay,
    Expect,
    ParameterDtype,
    Precision,
    TensorParallel,
)
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.linear import Linear

STRUCTURED = graph(
    "p = inner(x)",
    "y = head(p.0)",
    outputs="y p.1",
    returns="namedtuple",
    passing="keyword",
    inner=graph(
        Call(name="h", module="left", args=("x",), alternatives=("right",)),
        outputs="h x",
        returns="dataclass",
        passing="dict",
        method="encode",
        left=Linear(out=4),
        right=Linear(out=4),
    ),
    head=Linear(out=4),
)
BFLOAT16 = Precision(param="bfloat16", reduce="float32", output="float32")
TWO = (WrapGroup(modules=("linear0",)), WrapGroup(modules=("",)))
STEP = (ops.Forward(), ops.Backward(), ops.Step(), ops.ZeroGrad())

OPTIONS = replace(
    SMALL,
    model=STRUCTURED,
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),), same_on_ranks=True, on_host=True),
    wrap=(
        WrapGroup(
            modules=("inner",), offload="unpinned", shard_dim="last", forward_prefetch=("head",)
        ),
        WrapGroup(
            modules=("head",),
            backward_prefetch=("inner",),
            reshard_after_forward=False,
            communication=("sum", "allocate", "two_buffers", "hook"),
        ),
        WrapGroup(modules=("",)),
    ),
    schedule=(
        ops.Unshard(target="head"),
        ops.SetPath(path=1, target="inner"),
        ops.Forward(),
        ops.SetDivideFactor(factor=3.0),
        ops.Backward(),
        ops.ClipGradNorm(max_norm=0.5, error_if_nonfinite=True),
        ops.Step(),
        ops.Reshard(),
        ops.ZeroGrad(),
        ops.SetFlag(flag="reshard_after_forward", value=False, target="inner"),
        ops.SetRequiresGrad(target="head.bias", value=False),
        ops.Forward(batch=1),
        ops.Backward(),
        ops.Step(),
    ),
    checkpoints=(Checkpoint(module="head", implementation="utils"),),
    optimizer=Optimizer(
        kind="adam", lr=0.01, foreach=False, exclude=("head",), post_optim_event=True
    ),
    delays=(
        Delay(site="before_all_gather", milliseconds=1),
        Delay(site="after_step", milliseconds=1),
    ),
)
"""Divides by a factor that no other case has, and clips what it mixes of devices and meshes."""

STATES = replace(
    SMALL,
    model=chain("linear0", "linear1"),
    wrap=TWO,
    schedule=(
        *STEP,
        ops.TakeStateDict(),
        ops.SaveState(),
        ops.CorruptState(),
        ops.LoadState(),
        *STEP,
        ops.SaveState(via="state_dict"),
        ops.CorruptState(),
        ops.LoadState(assign=True),
        *STEP,
    ),
    optimizer=Optimizer(
        kind="adam", lr=0.01, lr_scheduler="step_lr", exclude=("linear1",), beside="adamw"
    ),
)
RETYPED = replace(
    SMALL,
    model=chain("linear0", "linear1"),
    wrap=TWO,
    schedule=(
        ops.SetGradDtype(target="linear0", dtype="float64"),
        ops.SetGradDtype(target="linear1.weight", dtype="bfloat16"),
        ops.SetGradDtype(target="linear1.bias"),
        *STEP,
        ops.SaveState(via="state_dict"),
        ops.LoadState(assign=True),
        *STEP,
    ),
)
AVERAGED = replace(
    SMALL,
    model=chain("linear0", "linear1"),
    wrap=TWO,
    schedule=(
        ops.SetFlag(flag="requires_gradient_sync", value=False, target="linear0"),
        ops.Forward(),
        ops.Backward(),
        ops.SetFlag(flag="requires_gradient_sync", value=True, target="linear0"),
        *STEP,
        ops.RunningAverage(decay=0.5),
        *STEP,
        ops.RunningAverage(copied=True),
    ),
    optimizer=Optimizer(grad_scaler="infinite"),
)
REBUILT = replace(
    STATES,
    schedule=(
        *STEP,
        ops.SaveState(),
        ops.CorruptState(how="rebuild", mesh=(2, 1)),
        ops.LoadState(),
        *STEP[:-1],
    ),
    init="meta",
)
TENSOR_PARALLEL = replace(
    SMALL,
    model=chain("linear0", "linear1", "linear2"),
    mesh=Mesh(shard=2, tensor=2),
    tensor_parallel=(
        TensorParallel(module="linear0", style="colwise"),
        TensorParallel(module="linear1", style="rowwise"),
    ),
    wrap=(WrapGroup(modules=("linear0",)), WrapGroup(modules=("linear2",))),
    schedule=STEP,
    freezes=(Freeze(target="linear0.bias"),),
)
PRECISION = replace(
    SMALL,
    model=chain("linear0", "linear1"),
    wrap=(WrapGroup(modules=("linear0",), precision=BFLOAT16), *TWO[1:]),
    schedule=STEP,
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),)),
)
CAST = replace(
    SMALL,
    schedule=(ops.Cast(dtype="float64"), *STEP),
    dtypes=(ParameterDtype(target="linear0.bias", dtype="float32"),),
)
FSDP1_CASE = replace(
    SMALL,
    model=chain("linear0", "linear1"),
    wrap=TWO,
    engines=("fsdp1",),
    fsdp1=FSDP1(wrapping="policy", forward_prefetch=True, strategy="shard_grad_op"),
    schedule=(
        ops.SetFlag(flag="requires_gradient_sync", value=False),
        ops.Forward(),
        ops.Backward(),
        ops.SetFlag(flag="requires_gradient_sync", value=True),
        ops.Forward(batch=1),
        ops.Backward(),
        ops.ClipGradNorm(max_norm=0.5, error_if_nonfinite=True),
        ops.Step(),
    ),
    freezes=(Freeze(target="linear0", after_wrap=True),),
)
REPLICATE = replace(FSDP1_CASE, engines=("replicate",), freezes=())
DDP_CASE = replace(
    REPLICATE,
    engines=("ddp",),
    ddp=DDP(
        gradient_as_bucket_view=True,
        buckets="one_each",
        buffers="broadcast",
        initial="first_rank",
        device_mesh=True,
        hook="average",
        join="effective",
    ),
)
STATIC = replace(
    REPLICATE,
    schedule=STEP,
    ignored=("linear1",),
    ddp=DDP(
        find_unused_parameters=False,
        static_graph=True,
        skip_all_reduce_unused_params=True,
        buckets="listed",
        initial="unsynced",
        hook="allreduce",
        ignored_modules=True,
    ),
)
HOOKED = replace(
    FSDP1_CASE,
    freezes=(),
    fsdp1=FSDP1(
        initial="meta", hook="average", summon="written", device_mesh=True, use_orig_params=True
    ),
)
APPLIED = replace(
    FSDP1_CASE,
    freezes=(),
    fsdp1=FSDP1(initial="applied", hook="torch", summon="discarded", strategy="shard_grad_op"),
)
EXPECTED = replace(
    FSDP1_CASE,
    expect=(Expect(kind="error", engine="fsdp1", pattern="planted", op=6, ranks="others"),),
)

TOLD = replace(
    SMALL,
    model=chain("linear0", "linear1"),
    wrap=(
        WrapGroup(
            modules=("linear0",), communication=("hook_stream", "custom_gather", "custom_scatter")
        ),
        WrapGroup(modules=("linear1",), communication=("separate_group", "zeros_for_unused")),
    ),
    schedule=STEP,
    engines=("fully_shard",),
)
SHARED = replace(
    TOLD,
    wrap=tuple(
        WrapGroup(modules=(m,), communication=("share_streams",)) for m in ("linear0", "linear1")
    ),
)
ABORTED = replace(
    TOLD,
    wrap=TWO,
    schedule=(
        *STEP,
        ops.Abort(target="linear0"),
        *STEP,
        ops.Abort(target="linear1", during="backward"),
        *STEP,
    ),
)

EXTENDED = replace(
    SMALL,
    wrap=(WrapGroup(modules=("",), all_gather_extension="signs_apart"),),
    schedule=(*STEP, ops.Forward(), ops.Backward(), ops.Step()),
)
ALL: dict[str, Case] = {
    "extended": EXTENDED,
    "told": TOLD,
    "shared": SHARED,
    "aborted": ABORTED,
    "options": OPTIONS,
    "states": STATES,
    "averaged and scaled": AVERAGED,
    "gradients of other dtypes": RETYPED,
    "rebuilt": REBUILT,
    "tensor_parallel": TENSOR_PARALLEL,
    "tensor_parallel, rebuilt": replace(TENSOR_PARALLEL, schedule=REBUILT.schedule),
    "precision": PRECISION,
    "cast": CAST,
    "fsdp1": FSDP1_CASE,
    "replicate": REPLICATE,
    "ddp": DDP_CASE,
    "static graph": STATIC,
    "fsdp1 on the meta device": HOOKED,
    "fsdp1 with apply": APPLIED,
}
