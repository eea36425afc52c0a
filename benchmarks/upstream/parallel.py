"""``_composable/fsdp/test_fully_shard_training.py``: meshes of several axes and custom forward
methods.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fuzzshard.case.case import Case, Mesh
from fuzzshard.case.graph import Block, Child, Module
from fuzzshard.case.options import TensorParallel
from fuzzshard.parts.leaves.convolutions import Conv2d
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import LayerNorm
from fuzzshard.parts.ops import Backward, Forward, Op, SetFlag, Step, ZeroGrad
from upstream.cell import Row, grid, single
from upstream.models import call, mlp, mlp_stack, sequential
from upstream.setup import (
    ADAM,
    BOTH,
    FULLY_SHARD,
    TRAINING,
    WITH_REPLICATE,
    checkpointed,
    each,
    floats,
    make,
    train,
)

STACK = ("mlp_0", "mlp_1", "mlp_2")
DIMS = (3, 16, 17)
ND_MESHES = {
    "1x2x2": Mesh(pipeline=1, shard=2, tensor=2),
    "2x2x2": Mesh(pipeline=2, shard=2, tensor=2),
}


def _stack_plan() -> Iterator[TensorParallel]:
    for name in STACK:
        yield TensorParallel(module=f"{name}.in_proj", style="colwise", local_output=False)
        yield TensorParallel(
            module=f"{name}.out_proj", style="rowwise", local_output=name == STACK[-1]
        )


def _stack(raf: bool, checkpoint: bool, dim: int, mesh: Mesh) -> Case:
    return make(
        mlp_stack(dim),
        train(10, fresh=True),
        floats(8, dim),
        mesh,
        each(*STACK, raf=raf, root=raf),
        tensor_parallel=tuple(_stack_plan()),
        checkpoints=checkpointed(STACK, checkpoint),
        engines=WITH_REPLICATE,
        optimizer=replace(ADAM, foreach=False),
    )


def _d1(raf: bool, checkpoint: bool, dim: int) -> Case:
    return _stack(raf, checkpoint, dim, Mesh(shard=2, tensor=2))


def _n1(raf: bool, checkpoint: bool, dim: int, mesh: str = "1x2x2") -> Case:
    return _stack(raf, checkpoint, dim, ND_MESHES[mesh])


def _d2(offload: str = "pinned", same: bool = True, mesh: Mesh | None = None) -> Case:
    return make(
        mlp_stack(16),
        train(10, fresh=False),
        floats(4, 16, same=same),
        mesh or Mesh(shard=1, tensor=4),
        each(*STACK, raf=True, root=True, offload=offload),
        tensor_parallel=tuple(_stack_plan()),
        engines=FULLY_SHARD,
        optimizer=replace(ADAM, foreach=False),
    )


def _h1_schedule(sync_at_last: bool) -> Iterator[Op]:
    for iteration in range(5):
        for microbatch in range(3):
            if sync_at_last:
                yield SetFlag(flag="requires_gradient_sync", value=microbatch == 2)
            yield Forward(batch=3 * iteration + microbatch)
            yield Backward()
        yield Step()
        yield ZeroGrad(set_to_none=iteration % 2 == 0)


def _h1(raf: bool, checkpoint: bool, dim: int, sync_at_last: bool) -> Case:
    modules: dict[str, Module] = {
        "norm": LayerNorm(bias=False),
        "mlp_0": mlp(dim, 3),
        "mlp_1": mlp(dim),
        "mlp_2": mlp(dim, 3),
    }
    return make(
        sequential(modules),
        _h1_schedule(sync_at_last),
        floats(8, dim),
        Mesh(replicate=2, shard=2),
        each(*modules, raf=raf, root=raf),
        checkpoints=checkpointed(modules, checkpoint),
        engines=WITH_REPLICATE,
        optimizer=ADAM,
    )


def _v1() -> Case:
    vit = Block(
        children=(Child(name="conv", module=Conv2d(channels=3, kernel=14, out=1024)),),
        nodes=(call("patches", "conv", "images"),),
        outputs=("patches",),
        inputs=("images",),
        method="forward_features",
    )
    return make(
        sequential({"vit": vit, "projector": Linear(out=256)}),
        (Forward(), Backward()),
        floats(4, 3 * 224 * 224),
        2,
        each("vit", "projector"),
        engines=FULLY_SHARD,
    )


ROWS = (
    Row(
        "D1",
        TRAINING,
        "TestFullyShard2DTraining.test_train_parity_2d_mlp",
        grid(_d1, raf=BOTH, checkpoint=BOTH, dim=DIMS),
    ),
    Row(
        "D2",
        TRAINING,
        "TestFullyShard2DTraining.test_tp_with_fsdp_offloading",
        single(_d2())
        + single(_d2("unpinned"), folder="unpinned")
        + single(_d2("unpinned", same=False, mesh=Mesh(shard=2, tensor=2)), folder="intended"),
        differs=(
            "the reference runs its backward, which upstream's lost",
            "today a shard axis of one rank has no collectives; upstream counted some",
            "pinned memory needs CUDA",
        ),
        folders=(
            ("unpinned", "offload to memory that is not pinned"),
            ("intended", "two data-parallel ranks with data of their own, not pinned"),
        ),
    ),
    Row(
        "N1",
        TRAINING,
        "TestFullyShardNDTraining.test_2d_mlp_with_nd_mesh",
        grid(_n1, raf=BOTH, checkpoint=BOTH, dim=DIMS)
        + grid(_n1, folder="wide", raf=BOTH, checkpoint=BOTH, dim=DIMS, mesh=("2x2x2",)),
        folders=(("wide", "8 ranks, which make no axis trivial"),),
    ),
    Row(
        "H1",
        TRAINING,
        "TestFullyShardHSDPTraining.test_train_parity_hsdp",
        grid(_h1, raf=BOTH, checkpoint=BOTH, dim=DIMS, sync_at_last=BOTH),
        differs=(
            "with `sync_at_last` composable DDP skips the same all-reduces; upstream's did not",
        ),
    ),
    Row(
        "V1",
        TRAINING,
        "TestFullyShardCustomForwardMethod.test_register_fsdp_forward_method",
        single(_v1()),
        differs=("an image comes as a row of features, which the model views as an image",),
    ),
)
