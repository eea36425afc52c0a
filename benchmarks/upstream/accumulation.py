"""``_composable/fsdp/test_fully_shard_training.py``: gradient accumulation over microbatches."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzshard.case.case import Case, Mesh
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.op import Flag, Op
from fuzzshard.parts.ops import Backward, Forward, SetFlag, Step, Unshard, ZeroGrad
from upstream.cell import Row, grid
from upstream.models import (
    TIED,
    layer_names,
    mlps,
    sequential,
    token_inputs,
    transformer,
)
from upstream.setup import (
    ADAM,
    ADAMW,
    BOTH,
    FULLY_SHARD,
    POSITIONS,
    RESHARDS,
    TRAINING,
    each,
    floats,
    make,
)

CLASS = "TestFullyShardGradientAccumulation"
MESHES = {"fsdp": Mesh(shard=4), "hsdp": Mesh(replicate=2, shard=2)}
MLPS = ("mlp_0", "mlp_1", "mlp_2")
MODES = ("all", "root_only", "some_mlps")
MICROBATCHES = 3


def _set(flag: Flag, value: bool, mode: str = "all") -> Iterator[Op]:
    targets = MLPS[:2] if mode == "some_mlps" else ("",)
    for target in targets:
        yield SetFlag(flag=flag, value=value, target=target, recurse=mode != "root_only")


def _accumulate(mode: str, reshard: bool, reduce_scatter_only: bool) -> Iterator[Op]:
    flag: Flag = "requires_all_reduce" if reduce_scatter_only else "requires_gradient_sync"
    for iteration in range(5):
        for microbatch in range(MICROBATCHES):
            is_last = microbatch == MICROBATCHES - 1
            yield from _set(flag, is_last, mode)
            if not reshard:
                yield from _set("reshard_after_backward", is_last, mode)
            yield Forward(batch=MICROBATCHES * iteration + microbatch)
            yield Backward()
        yield Step()
        yield ZeroGrad(set_to_none=iteration % 2 == 1)


def _g1(
    mesh: str,
    raf: bool | int,
    mode: str,
    reshard_after_backward: bool,
    offload: str | None,
    reduce_scatter_only: bool,
    root: bool | int | None = None,
) -> Case:
    return make(
        sequential({"linear": Linear(out=32), **mlps(32, 4, 4, 4)}),
        _accumulate(mode, reshard_after_backward, reduce_scatter_only),
        floats(2, 32),
        MESHES[mesh],
        each(*MLPS, raf=raf, root=False if raf is False else root, offload=offload),
        engines=FULLY_SHARD,
        optimizer=ADAM,
    )


def _g1_today(raf: int, **axes: object) -> Case:
    return _g1(raf=raf, root=raf, **axes)  # type: ignore[arg-type]


def _not_run(
    mesh: str,
    raf: bool | int,
    mode: str,
    reshard_after_backward: bool,
    offload: str | None,
    reduce_scatter_only: bool,
) -> bool:
    """Upstream's rule: what saves no gather, what offloading does not concern, what needs an
    all-reduce.
    """
    return (
        (not reshard_after_backward and (raf is not False or mode == "some_mlps"))
        or (offload is not None and raf is not True)
        or (reduce_scatter_only and mesh == "fsdp")
    )


def _g2(explicit_unshard: bool, reshard_after_backward: bool) -> Case:
    ops: list[Op] = [Unshard(async_op=True)] if explicit_unshard else []
    for microbatch in range(MICROBATCHES):
        is_last = microbatch == MICROBATCHES - 1
        ops += _set("requires_gradient_sync", is_last)
        ops += _set("is_last_backward", is_last)
        if not reshard_after_backward:
            ops += _set("reshard_after_backward", is_last)
        ops += Forward(batch=microbatch), Backward()
    return make(
        transformer(),
        (*ops, Step()),
        token_inputs(2, 16),
        4,
        each(*layer_names(), raf=False, root=False),
        ties=TIED,
        engines=FULLY_SHARD,
        optimizer=ADAMW,
    )


ROWS = (
    Row(
        "G1",
        TRAINING,
        f"{CLASS}.test_gradient_accumulation",
        grid(
            _g1,
            skip=_not_run,
            mesh=tuple(MESHES),
            raf=RESHARDS,
            mode=MODES,
            reshard_after_backward=BOTH,
            offload=(None, "pinned"),
            reduce_scatter_only=BOTH,
        )
        + grid(
            _g1,
            folder="unpinned",
            skip=_not_run,
            mesh=tuple(MESHES),
            raf=(True,),
            mode=MODES,
            reshard_after_backward=(True,),
            offload=("unpinned",),
            reduce_scatter_only=BOTH,
        )
        + grid(
            _g1_today,
            folder="today",
            skip=_not_run,
            mesh=tuple(MESHES),
            raf=(True, 2),
            mode=MODES,
            reshard_after_backward=(True,),
            offload=(None,),
            reduce_scatter_only=BOTH,
        ),
        differs=(
            "where the MLPs reshard the root has reshard_after_forward=None, which today means "
            "what the root did then, with as many all-gathers",
            "the axes of the HSDP mesh are named, as they must be today",
            "pinned memory needs CUDA",
        ),
        folders=(
            ("unpinned", "offload to memory that is not pinned"),
            (
                "today",
                "the root has the reshard_after_forward of the MLPs, and gathers anew in backward",
            ),
        ),
    ),
    Row(
        "G2",
        TRAINING,
        f"{CLASS}.test_1f1b_microbatching",
        grid(_g2, explicit_unshard=BOTH, reshard_after_backward=BOTH),
        differs=(POSITIONS,),
    ),
)
