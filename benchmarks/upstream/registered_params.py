"""``_composable/fsdp/test_fully_shard_training.py``: inputs, registered parameters, a cast after
wrapping.
"""

from __future__ import annotations

from fuzzshard.case.case import Case, Inputs, Optimizer, TensorSpec
from fuzzshard.case.graph import Block
from fuzzshard.parts.ops import Backward, Cast, Forward, Op, Reshard
from upstream.cell import Row, grid, single
from upstream.models import add, mlp, mlps, sequential
from upstream.setup import (
    FULLY_SHARD,
    RESHARDS,
    TRAINING,
    WITH_REPLICATE,
    each,
    floats,
    make,
    only,
    train,
)

PLANS = ("single", "multi")


def _i1(on_host: bool = True) -> Case:
    names = ("x", "y0", "y1")
    model = Block(
        children=(), nodes=(add("z", *names),), outputs=("z",), inputs=names, passing="tuple"
    )
    inputs = Inputs(batch=1, tensors=(TensorSpec(size=3),) * 3, on_host=on_host)
    return make(model, (Forward(),), inputs, 2, only(""), engines=FULLY_SHARD)


def _after_forward(raf: bool | int | None, plan: str, root: bool | int | None = None) -> Case:
    """``single``: one MLP, all in the root's group. ``multi``: the root's group is the second
    MLP.
    """
    ops: tuple[Op, ...] = (Forward(), Reshard())
    inputs = floats(2, 3)
    if plan == "single":
        return make(mlp(3), ops, inputs, 4, only("", raf=raf), engines=FULLY_SHARD)
    wrap = each("mlp_0.in_proj", "mlp_0.out_proj", raf=raf, root=root)
    return make(sequential(mlps(3, 4, 4)), ops, inputs, 4, wrap, engines=FULLY_SHARD)


def _after_forward_today(raf: bool | int | None, plan: str) -> Case:
    return _after_forward(raf, plan, root=raf)


def _after_backward(raf: bool | int, plan: str) -> Case:
    wrap = (
        only("", raf=raf) if plan == "single" else each("in_proj", "out_proj", raf=raf, root=raf)
    )
    return make(mlp(8), (Forward(), Backward()), floats(2, 8), 4, wrap, engines=FULLY_SHARD)


def _c1() -> Case:
    return make(
        mlp(4),
        (Cast(dtype="float64"), *train(10, fresh=False, zero="end")),
        floats(2, 4),
        2,
        each("in_proj", "out_proj"),
        engines=WITH_REPLICATE,
        optimizer=Optimizer(kind="adam", lr=1e-2, foreach=True),
    )


ROWS = (
    Row(
        "I1",
        TRAINING,
        "TestFullyShardForwardInputs.test_root_move_forward_input_to_device",
        single(_i1()) + single(_i1(on_host=False), folder="device"),
        differs=(
            "all three inputs are in one tuple, as a root's arguments are passed one way; nothing "
            "is added",
            "on a CPU there is nothing to move",
        ),
        folders=(("device", "inputs are on the device already, so that a CPU can run it"),),
    ),
    Row(
        "P1",
        TRAINING,
        "TestFullyShardRegisteredParams.test_param_registration_after_forward",
        grid(_after_forward, raf=RESHARDS, plan=PLANS)
        + grid(_after_forward_today, folder="today", raf=(*RESHARDS, None), plan=("multi",))
        + grid(_after_forward_today, folder="today", raf=(None,), plan=("single",)),
        differs=(
            "the root of `multi` has reshard_after_forward=None, which today means what the root "
            "did then: it never reshards after forward",
            "a single group is resharded as it is told, as today",
        ),
        folders=(
            ("today", "the root has the reshard_after_forward of the others, or all have None"),
        ),
    ),
    Row(
        "P2",
        TRAINING,
        "TestFullyShardRegisteredParams.test_param_registration_after_backward",
        grid(_after_backward, raf=RESHARDS, plan=PLANS),
    ),
    Row(
        "C1",
        TRAINING,
        "TestFullyShardCastAfterInit.test_to_float64_after_init",
        single(_c1()),
        differs=(
            "the plain reference and composable DDP are cast at the same op, not before they are "
            "made",
        ),
    ),
)
