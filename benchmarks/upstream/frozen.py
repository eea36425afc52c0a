"""``_composable/fsdp/test_fully_shard_frozen.py``: ``fully_shard`` with frozen parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuzzshard.case.case import Case, Freeze
from fuzzshard.case.graph import Block, TensorOp
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Backward, Forward, Op, SetRequiresGrad, Step, ZeroGrad
from upstream.cell import Row, grid
from upstream.models import block, call, linears_and_relus, mlps, relu, sequential
from upstream.setup import (
    ADAM,
    BOTH,
    FULLY_SHARD,
    RESHARDS,
    UNEVEN,
    WITH_REPLICATE,
    checkpointed,
    each,
    floats,
    losses_if_uneven,
    make,
    only,
    train,
)

FILE = "_composable/fsdp/test_fully_shard_frozen.py"
CLASS = "TestFullyShardFrozen"
MLPS = ("mlp_0", "mlp_1", "mlp_2")
LINEARS = tuple(f"linear_{i}" for i in range(6))


def _z1(raf: bool | int, checkpoint: bool, freeze_after_init: bool) -> Case:
    weights = (f"{name}.{linear}.weight" for name in MLPS for linear in ("in_proj", "out_proj"))
    return make(
        sequential(mlps(32, 4, 4, 4)),
        train(10, fresh=True),
        floats(8, 32),
        4,
        each(*MLPS, raf=raf, root=raf),
        freezes=tuple(Freeze(target=weight, after_wrap=freeze_after_init) for weight in weights),
        checkpoints=checkpointed(MLPS, checkpoint),
        engines=WITH_REPLICATE,
        optimizer=ADAM,
    )


def _z2_schedule(unfreeze: tuple[str, ...], engines_only: bool) -> Iterator[Op]:
    for iteration in range(3):
        if iteration == 1:
            yield Forward(grad=False)
            continue
        if iteration == 2:
            for name in unfreeze:
                yield SetRequiresGrad(target=name, value=True, engines_only=engines_only)
        yield from (Forward(), Backward(), Step(), ZeroGrad(set_to_none=iteration % 2 == 0))


def _z2(raf: bool | int, unfreeze: bool, intended: bool = False) -> Case:
    frozen = LINEARS[::2] if intended else LINEARS[:1]
    literally = unfreeze and not intended
    return make(
        linears_and_relus(6, 32),
        _z2_schedule(frozen if unfreeze else (), engines_only=literally),
        floats(8, 32),
        4,
        only(*LINEARS, raf=raf),
        freezes=tuple(Freeze(target=name, after_wrap=True) for name in frozen),
        engines=FULLY_SHARD if unfreeze else WITH_REPLICATE,
        optimizer=ADAM,
        observe="losses" if literally else "everything",
    )


def _z2_intended(raf: bool | int, unfreeze: bool) -> Case:
    return _z2(raf, unfreeze, intended=True)


def _multi_forward() -> Block:
    nodes: list[Any] = [call("x0", "layer_0", "x")]
    for i in range(3):
        nodes += (
            call(f"a{i}", "layer_with_grad", nodes[-1].name),
            relu(f"b{i}", f"a{i}"),
            call(f"c{i}", "layer_no_grad", f"b{i}"),
            call(f"d{i}", "layer_with_grad", f"c{i}", grad=False),
            relu(f"e{i}", f"d{i}"),
            TensorOp(name=f"f{i}", op="iadd", args=(f"c{i}", f"e{i}")),
        )
    layer = Linear(out=5)
    return block({"layer_0": layer, "layer_no_grad": layer, "layer_with_grad": layer}, *nodes)


def _z3(raf: bool | int, same: bool = True) -> Case:
    return make(
        _multi_forward(),
        train(10, fresh=True),
        floats(8, 5, same=same),
        4,
        each("layer_0", "layer_no_grad", "layer_with_grad", raf=raf, root=raf),
        freezes=(Freeze(target="layer_no_grad"),),
        engines=WITH_REPLICATE,
        optimizer=ADAM,
        observe=losses_if_uneven(raf),
    )


def _z3_intended(raf: bool | int) -> Case:
    return _z3(raf, same=False)


ROWS = (
    Row(
        "Z1",
        FILE,
        f"{CLASS}.test_train_mixed_requires_grad_per_group",
        grid(_z1, raf=(False, True, 2), checkpoint=BOTH, freeze_after_init=BOTH),
    ),
    Row(
        "Z2",
        FILE,
        f"{CLASS}.test_train_mixed_requires_grad_across_groups",
        grid(_z2, raf=(False, True, 2), unfreeze=BOTH)
        + grid(_z2_intended, folder="intended", raf=(False, True, 2), unfreeze=BOTH),
        differs=(
            "as upstream an index slip freezes the first linear only, and with `unfreeze` only "
            "the engines unfreeze it, so that only losses are compared",
            "composable DDP does not run with `unfreeze`: it never synchronises what was frozen "
            "at first",
        ),
        folders=(
            ("intended", "every other linear is frozen, and the reference unfreezes them too"),
        ),
    ),
    Row(
        "Z3",
        FILE,
        f"{CLASS}.test_multi_forward_mixed_requires_grad",
        grid(_z3, raf=RESHARDS) + grid(_z3_intended, folder="intended", raf=RESHARDS),
        differs=(UNEVEN,),
        folders=(("intended", "ranks get different data"),),
    ),
)
