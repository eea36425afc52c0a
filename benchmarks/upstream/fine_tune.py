"""``fsdp/test_fsdp_fine_tune.py``: FSDP1 with frozen parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from fuzzshard.case.case import Case, Freeze, Inputs, TensorSpec
from fuzzshard.case.graph import Block, TensorOp
from fuzzshard.case.options import FSDP1, Precision
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Backward, Forward, Op, SetRequiresGrad
from upstream.cell import Cell, Row, grid
from upstream.models import block, call, linears_and_relus
from upstream.setup import (
    ADAM,
    BOTH,
    DDP_AND_FSDP1,
    FSDP1_ONLY,
    always,
    each,
    floats,
    make,
    train,
)

FILE = "fsdp/test_fsdp_fine_tune.py"
CLASS = "TestFSDPFineTune"
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard")
LINEARS = tuple(f"linear_{i}" for i in range(6))
FROZEN = LINEARS[::2]
TRAVERSALS = 10


def _f1_schedule(unfreeze: bool) -> Iterator[Op]:
    yield from (Forward(batch=0), Backward())
    yield Forward(batch=1, grad=False)
    if unfreeze:
        yield from (SetRequiresGrad(target=name, value=True) for name in FROZEN)
    yield from (Forward(batch=2), Backward())


def _f1(strategy: Any, use_orig_params: bool, input_requires_grad: bool, unfreeze: bool) -> Case:
    return make(
        linears_and_relus(6, 5),
        _f1_schedule(unfreeze),
        floats(8, 5, requires_grad=input_requires_grad),
        2,
        each(*LINEARS),
        freezes=tuple(Freeze(target=name) for name in FROZEN),
        engines=FSDP1_ONLY,
        fsdp1=FSDP1(strategy=strategy, use_orig_params=use_orig_params, wrapping="policy"),
    )


def _multi_traversal() -> Block:
    nodes: list[Any] = [call("x0", "layer_0", "x")]
    for i in range(TRAVERSALS):
        nodes += (
            call(f"a{i}", "layer_with_grad", nodes[-1].name),
            call(f"b{i}", "layer_no_grad", f"a{i}"),
            call(f"c{i}", "layer_with_grad", f"b{i}", grad=False),
            TensorOp(name=f"d{i}", op="iadd", args=(f"b{i}", f"c{i}")),
        )
    layer = Linear(out=5)
    return block({"layer_0": layer, "layer_no_grad": layer, "layer_with_grad": layer}, *nodes)


def _f2(
    strategy: Any, use_orig_params: bool, input_requires_grad: bool, forward_prefetch: bool
) -> Case:
    return make(
        _multi_traversal(),
        train(6, fresh=True, zero="end", to_none=always),
        floats(8, 5, requires_grad=input_requires_grad),
        2,
        each("layer_0", "layer_no_grad", "layer_with_grad"),
        freezes=(Freeze(target="layer_no_grad"),),
        engines=DDP_AND_FSDP1,
        optimizer=ADAM,
        fsdp1=FSDP1(
            strategy=strategy,
            use_orig_params=use_orig_params,
            wrapping="policy",
            forward_prefetch=forward_prefetch,
        ),
    )


def _f3(strategy: Any, use_orig_params: bool) -> Case:
    return make(
        linears_and_relus(6, 5),
        train(6, fresh=True, zero="end", to_none=always),
        floats(8, 5),
        2,
        each(*LINEARS),
        freezes=tuple(Freeze(target=name) for name in FROZEN),
        engines=DDP_AND_FSDP1,
        optimizer=ADAM,
        fsdp1=FSDP1(strategy=strategy, use_orig_params=use_orig_params, wrapping="policy"),
    )


def _unused_input(learnable: str) -> Block:
    """Three linears that ignore their second argument, concatenated with ``learnable``."""
    inputs = ("frozen_input", "learnable_input")
    linear = block({"linear": Linear(out=4)}, call("y", "linear", inputs[0]), inputs=inputs)
    layers = ("layer0", "layer1_frozen", "layer2")
    return block(
        dict.fromkeys(layers, linear),
        *(call(f"y{i}", name, inputs[0], learnable) for i, name in enumerate(layers)),
        TensorOp(name="joined", op="concat", args=("y0", "y1", "y2", learnable)),
        inputs=inputs,
    )


def _f4(
    strategy: Any,
    use_orig_params: bool,
    offload: bool,
    fp16: bool,
    prefetch: Any,
    learnable: str = "frozen_input",
) -> Case:
    tensors = (TensorSpec(size=4), TensorSpec(size=4, requires_grad=True))
    return make(
        _unused_input(learnable),
        train(6, fresh=True, zero="end", to_none=always),
        Inputs(batch=4, tensors=tensors),
        2,
        each("layer0", "layer1_frozen", "layer2"),
        freezes=(Freeze(target="layer1_frozen"),),
        engines=FSDP1_ONLY,
        optimizer=replace(ADAM, exclude=("layer1_frozen",)),
        fsdp1=FSDP1(
            strategy=strategy,
            use_orig_params=use_orig_params,
            wrapping="policy",
            backward_prefetch=prefetch,
            offload=offload,
            precision=Precision(param="float16", reduce="float16") if fp16 else None,
        ),
    )


def _f4_intended(**axes: Any) -> Case:
    return _f4(**axes, learnable="learnable_input")


def _f4_grid(build: Callable[..., Case], folder: str = "") -> tuple[Cell, ...]:
    return grid(
        build,
        folder=folder,
        strategy=STRATEGIES[:2],
        use_orig_params=BOTH,
        offload=BOTH,
        fp16=BOTH,
        prefetch=("pre", "post"),
    )


ROWS = (
    Row(
        "F1",
        FILE,
        f"{CLASS}.test_backward_reshard_hooks",
        grid(
            _f1, strategy=STRATEGIES, use_orig_params=BOTH, input_requires_grad=BOTH, unfreeze=BOTH
        ),
        differs=("gradients and parameters are compared too; upstream only counts hooks",),
    ),
    Row(
        "F2",
        FILE,
        f"{CLASS}.test_hooks_multi_traversal",
        grid(
            _f2,
            strategy=STRATEGIES,
            use_orig_params=BOTH,
            input_requires_grad=BOTH,
            forward_prefetch=BOTH,
        ),
    ),
    Row(
        "F3",
        FILE,
        f"{CLASS}.test_parity_with_ddp",
        grid(_f3, strategy=STRATEGIES, use_orig_params=BOTH),
    ),
    Row(
        "F4",
        FILE,
        f"{CLASS}.test_parity_with_non_frozen_fsdp",
        _f4_grid(_f4) + _f4_grid(_f4_intended, folder="intended"),
        differs=(
            "a layer is a module with a Linear, not a Linear with another forward",
            "the reference is a plain model that is frozen too; upstream's is FSDP with nothing "
            "frozen, whose optimizer spares the same parameters",
            "as upstream the frozen input is passed twice, so that the learnable one is never "
            "used",
            "FSDP1's CPU offload needs CUDA",
        ),
        folders=(("intended", "the learnable input is passed"),),
    ),
)
