"""FSDP1, composable DDP, tensor parallelism, and what they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from cases import (
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    ZERO,
    call,
    chain,
    children,
    colwise,
    float_inputs,
    groups,
    make_case,
    rowwise,
)

from fuzzshard.case.case import Freeze, Mesh, Optimizer
from fuzzshard.case.graph import Block, Call
from fuzzshard.case.options import FSDP1, SPMD, ContextParallel, Expect, Precision, TensorParallel
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.attention import FusedAttention
from fuzzshard.parts.leaves.constant import Constant
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import LayerNorm
from fuzzshard.parts.leaves.operators import Operators
from fuzzshard.parts.leaves.running_sum import RunningSum
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import Overflow, SetPath, SetRequiresGrad, TakeStateDict
from stock_cases.stock import Stock, bitwise, bounded, configured, imprecise, unjudged


def fsdp1(options: FSDP1, *, mesh: int | Mesh = 2, **rest: Any) -> Stock:
    """FSDP1 alone, with momentum."""
    build = bitwise if mesh == 2 else bounded
    return build(
        mesh=mesh, engines=("fsdp1",), fsdp1=options, optimizer=Optimizer(momentum=0.5), **rest
    )


def attending(options: ContextParallel, *, mesh: int | Mesh = 2) -> Stock:
    """Attention by one kernel, over ranks that share positions."""
    return bounded(
        chain(a=FusedAttention(heads=2), b=Linear(out=3)),
        inputs=float_inputs(4, seq=4),
        mesh=mesh,
        engines=("context_parallel",),
        context_parallel=options,
    )


_HSDP = Mesh(replicate=2, shard=2)
_LINEAR = Linear(out=5)
_PATHS = Block(
    children=children(a=_LINEAR, b=_LINEAR, c=_LINEAR),
    nodes=(call("h", "a", "x"), Call(name="y", module="b", args=("h",), alternatives=("c",))),
    outputs=("y",),
)
_FLIP: tuple[Op, ...] = (
    SetPath(path=1, ranks="others"),
    SetRequiresGrad(target="b", value=False, ranks="others"),
    SetRequiresGrad(target="c", value=True, ranks="others"),
)
_RAISED = (
    "raised as expected: Forward order differs across ranks: rank 0 is all-gathering parameters "
    "for [['b.weight', 'b.bias']] while rank 1 is all-gathering parameters for [['c.weight', "
    "'c.bias']]"
)


def two_paths(
    schedule: tuple[Op, ...], expect: Expect, notes: Mapping[str, str] | None = None
) -> Stock:
    """Ranks that take different paths, which FSDP1 tells at debug level DETAIL."""
    return unjudged(
        _PATHS,
        schedule,
        wrap=groups("b", "c", ROOT),
        freezes=(Freeze(target="c"),),
        engines=("fsdp1",),
        fsdp1=FSDP1(debug="detail"),
        expect=(expect,),
        notes=notes,
    )


ENGINES = {
    "replicate": bitwise(engines=("replicate",)),
    "replicate_with_fsdp, all axes as one": bounded(
        wrap=groups("a", "b", ROOT, reshard=False), engines=("replicate_with_fsdp",), mesh=_HSDP
    ),
    "simple_fsdp, hybrid": bounded(engines=("simple_fsdp",), mesh=_HSDP),
    "simple_fsdp, collectives in a graph": bitwise(engines=("simple_fsdp",), compile="aot_eager"),
    "context_parallel, hybrid": attending(ContextParallel(rotate_method="alltoall"), mesh=_HSDP),
    "context_parallel, positions in order": attending(ContextParallel(load_balance=False)),
    "spmd, axes in tuples": bounded(
        engines=("spmd",), spmd=SPMD(dp_mesh_dims="tuples"), mesh=_HSDP
    ),
    "spmd, axes flattened": bounded(
        engines=("spmd",), spmd=SPMD(dp_mesh_dims="flattened"), mesh=_HSDP
    ),
    "spmd, nothing sharded": bitwise(engines=("spmd",), spmd=SPMD(dp_mesh_dims="replicated")),
    "spmd, batches in shards": bitwise(
        engines=("spmd",), spmd=SPMD(dp_mesh_dims="replicated", inputs="sharded")
    ),
    "spmd, batches in shards of a hybrid mesh": bounded(
        engines=("spmd",), spmd=SPMD(inputs="sharded"), mesh=_HSDP
    ),
    "fsdp1": fsdp1(FSDP1()),
    "fsdp1, sharded gradients of original parameters, by a policy": fsdp1(
        FSDP1(
            strategy="shard_grad_op",
            use_orig_params=True,
            wrapping="policy",
            forward_prefetch=True,
            backward_prefetch="post",
            limit_all_gathers=False,
        )
    ),
    "fsdp1, nothing sharded": fsdp1(FSDP1(strategy="no_shard", backward_prefetch=None)),
    "fsdp1, every second unit sharded": fsdp1(FSDP1(strategy="mixed"), wrap=groups("a", "b")),
    "fsdp1, every second unit sharded, by a policy": fsdp1(
        FSDP1(strategy="mixed", wrapping="policy", use_orig_params=True)
    ),
    "fsdp1, hybrid": fsdp1(FSDP1(strategy="hybrid_shard"), mesh=_HSDP),
    "fsdp1, hybrid in the manner of ZeRO 2": fsdp1(
        FSDP1(strategy="hybrid_shard_zero2"), mesh=_HSDP
    ),
    "fsdp1, mixed precision": imprecise(
        engines=("fsdp1",), fsdp1=FSDP1(precision=Precision(param="bfloat16"))
    ),
    "fsdp1, mixed precision of buffers": imprecise(
        chain(a=RunningSum(), b=Linear(out=3), c=Constant()),
        (FORWARD, BACKWARD, STEP, TakeStateDict(), ZERO, FORWARD, BACKWARD, STEP),
        engines=("fsdp1",),
        fsdp1=FSDP1(precision=Precision(param="bfloat16", buffer="float16"), use_orig_params=True),
        wrap=groups(ROOT),
    ),
    "fsdp1, other values by apply(), and torch's hook": fsdp1(
        FSDP1(initial="applied", hook="torch", use_orig_params=True)
    ),
    "fsdp1, built on the meta device on a device mesh, with a user's hook": fsdp1(
        FSDP1(initial="meta", hook="average", device_mesh=True)
    ),
    "fsdp1, full parameters that are written": fsdp1(FSDP1(summon="written")),
    "fsdp1, full parameters that are discarded": fsdp1(FSDP1(summon="discarded")),
    "fsdp1, full parameters on the first rank": fsdp1(FSDP1(summon="first_rank")),
    "fsdp1, full parameters with gradients": fsdp1(
        FSDP1(summon="gradients", use_orig_params=True)
    ),
    "fsdp1, full parameters with gradients that are discarded": fsdp1(
        FSDP1(summon="discarded_gradients", use_orig_params=True)
    ),
    **{
        f"fsdp1, losses that are scaled, {dtype}": bitwise(
            None,
            (FORWARD, BACKWARD, Overflow(), STEP, ZERO, FORWARD, BACKWARD, STEP),
            engines=("fsdp1",),
            fsdp1=FSDP1(use_orig_params=True),
            optimizer=Optimizer(grad_scaler="finite"),
            dtype=dtype,
        )
        for dtype in ("float32", "float64")
    },
    "fsdp1, full parameters of the root's unit": fsdp1(FSDP1(summon="root")),
    "fsdp1, an error where ranks differ": two_paths(
        (*_FLIP, FORWARD),
        Expect(kind="error", engine="fsdp1", pattern="^Forward order differs across ranks", op=3),
        notes={"fsdp1": _RAISED},
    ),
    "fsdp1, a warning where an iteration differs": two_paths(
        (FORWARD, BACKWARD, *_FLIP, FORWARD, BACKWARD),
        Expect(
            kind="warning", engine="fsdp1", pattern="^Forward order differs", op=5, ranks="others"
        ),
    ),
}

_SQUARE = Mesh(shard=2, tensor=2)

TENSOR = {
    "columns and rows": bounded(mesh=_SQUARE, tensor_parallel=(colwise("a"), rowwise("b"))),
    "drawn after a weight that ranks share unevenly": bounded(
        mesh=Mesh(shard=1, tensor=2),
        inputs=float_inputs(5),
        wrap=configured("a", ROOT, drawn="kaiming_uniform_"),
        tensor_parallel=(rowwise("a", input="replicate"),),
    ),
    "a norm along the sequence": bounded(
        chain(a=Linear(out=4), n=LayerNorm(), b=Linear(out=3)),
        mesh=_SQUARE,
        inputs=float_inputs(seq=4),
        tensor_parallel=(
            rowwise("a", input="replicate", output="sequence"),
            TensorParallel(module="n", style="sequence"),
            colwise("b", input="sequence", output="replicate"),
        ),
    ),
    "a norm along the rows": bounded(
        chain(a=Linear(out=4), n=LayerNorm(), b=Linear(out=3)),
        mesh=_SQUARE,
        inputs=float_inputs(4),
        tensor_parallel=(
            rowwise("a", input="replicate", output="rows"),
            TensorParallel(module="n", style="sequence", input="rows", from_end=True),
            colwise("b", input="rows", output="rows", from_end=True, local_output=False),
        ),
    ),
    "features that a plan tells": bounded(
        chain(a=Linear(out=4), r=Activation(), b=Linear(out=3)),
        mesh=_SQUARE,
        tensor_parallel=(
            colwise("a", output="features", local_output=True),
            rowwise("b", input="features", output="features", from_end=True, local_output=False),
        ),
    ),
    "values of the first rank, and of each": bounded(
        mesh=_SQUARE,
        tensor_parallel=(
            rowwise("a", input="replicate", initial="first_rank"),
            rowwise("b", input="replicate", initial="own"),
        ),
    ),
    "values of the last rank": bounded(
        mesh=_SQUARE,
        tensor_parallel=(colwise("a", output="replicate", initial="last_rank"),),
    ),
    "operators on DTensors": bounded(
        chain(
            a=Linear(out=3), m=Operators(functions=(("mean", -1), ("softmax", 1))), n=LayerNorm()
        ),
        mesh=_SQUARE,
        tensor_parallel=(
            TensorParallel(module="m", style="dtensor", dim=-1),
            TensorParallel(
                module="n", style="dtensor", dim=0, result="to_local", grad_placements=True
            ),
        ),
    ),
    "a style for arguments and results": bounded(
        chain(a=Linear(out=3), n=LayerNorm()),
        mesh=_SQUARE,
        tensor_parallel=(TensorParallel(module="n", style="dtensor", dim=0, result="style"),),
    ),
    "a style for arguments": bounded(
        mesh=_SQUARE,
        tensor_parallel=(
            colwise("a"),
            rowwise("b"),
            TensorParallel(
                module="", style="prepare", prepared=("x",), dim=-1, local_output=False
            ),
        ),
    ),
    "a style for results": bounded(
        chain(a=Linear(out=5), b=Linear(out=4)),
        mesh=_SQUARE,
        tensor_parallel=(
            rowwise("a", input="replicate"),
            colwise("b", output="features", local_output=True),
            TensorParallel(module="", style="prepare_output", prepared=("h1",), input="features"),
        ),
    ),
    "a style for arguments and results of a block": bounded(
        mesh=_SQUARE,
        inputs=float_inputs(4),
        tensor_parallel=(
            colwise("a"),
            rowwise("b"),
            TensorParallel(module="", style="prepare", prepared=("x",)),
            TensorParallel(
                module="", style="prepare_output", prepared=("h2",), dim=0, local_output=False
            ),
        ),
    ),
    "a style for keyword arguments": bounded(
        msgspec.structs.replace(chain(a=Linear(out=4), b=Linear(out=3)), passing="keyword"),
        mesh=_SQUARE,
        tensor_parallel=(
            colwise("a"),
            rowwise("b"),
            TensorParallel(module="", style="prepare", prepared=("x",)),
        ),
    ),
    "a norm of local rows": bounded(
        chain(a=Linear(out=3), n=LayerNorm()),
        mesh=_SQUARE,
        tensor_parallel=(TensorParallel(module="n", style="dtensor", dim=0, local_map=True),),
    ),
    "columns and rows of DTensors on all axes": bounded(
        mesh=_SQUARE, engines=("spmd",), tensor_parallel=(colwise("a"), rowwise("b"))
    ),
    "local rows of DTensors on all axes": bounded(
        chain(a=Linear(out=3), n=LayerNorm()),
        mesh=_SQUARE,
        engines=("spmd",),
        spmd=SPMD(inputs="sharded"),
        tensor_parallel=(TensorParallel(module="n", style="dtensor", dim=0, local_map=True),),
    ),
    "a loss of classes, of DTensors on all axes": bounded(
        mesh=_SQUARE,
        engines=("spmd",),
        spmd=SPMD(inputs="sharded"),
        tensor_parallel=(rowwise("a", input="replicate"), colwise("b", local_output=False)),
        loss="loss_parallel_mean",
    ),
    "a loss of classes that ranks share": bounded(
        mesh=_SQUARE,
        tensor_parallel=(rowwise("a", input="replicate"), colwise("b", local_output=False)),
        loss="loss_parallel",
    ),
    "their mean": bounded(
        mesh=_SQUARE,
        tensor_parallel=(rowwise("a", input="replicate"), colwise("b", local_output=False)),
        loss="loss_parallel_mean",
    ),
    "the squares of each": bounded(
        mesh=_SQUARE,
        tensor_parallel=(rowwise("a", input="replicate"), colwise("b", local_output=False)),
        loss="loss_parallel_of_each",
    ),
    "replicas of tensor-parallel ranks": bounded(
        mesh=Mesh(replicate=2, shard=1, tensor=2), tensor_parallel=(colwise("a"), rowwise("b"))
    ),
    "slices of a pipeline": bounded(
        mesh=Mesh(pipeline=2, shard=1, tensor=2), tensor_parallel=(colwise("a"), rowwise("b"))
    ),
}
NEEDS_CUDA = {
    "pinned memory": make_case(wrap=configured("a", "b", ROOT, offload="pinned")),
    "scalar states beside pinned memory": make_case(
        wrap=configured("a", "b", ROOT, offload="pinned"), optimizer=Optimizer(kind="asgd", lr=0.1)
    ),
    "an optimizer that can be captured in a graph": make_case(
        optimizer=Optimizer(kind="adamw", lr=0.01, flags=("capturable",))
    ),
    "offloaded by fsdp1": make_case(engines=("fsdp1",), fsdp1=FSDP1(offload=True)),
    "values of fsdp1's first rank": make_case(
        engines=("fsdp1",), fsdp1=FSDP1(initial="first_rank")
    ),
    "full parameters of fsdp1 on the host": make_case(
        engines=("fsdp1",), fsdp1=FSDP1(summon="on_host")
    ),
    "inputs on the host": make_case(inputs=msgspec.structs.replace(float_inputs(), on_host=True)),
    "Inductor": make_case(compile="inductor", wrap=groups(ROOT)),
}
"""Cases that a CPU cannot run (:mod:`fuzzshard.analysis.needs` says why)."""
