"""Options of ``fully_shard`` and of its groups, precision, delays."""

from __future__ import annotations

import itertools
from typing import Any, Literal

from cases import (
    ADAPTED,
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
    two_linears,
)

from fuzzshard.case.case import Freeze, Inputs, Mesh, Optimizer, TensorSpec, WrapGroup
from fuzzshard.case.graph import Block
from fuzzshard.case.options import Delay, DelaySite, ParameterDtype, Precision
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.embedding import Embedding
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.raw_parameter import RawParameter
from fuzzshard.parts.op import Op
from fuzzshard.parts.options.communication import CommunicationOption
from fuzzshard.parts.options.wrap_group.drawn import INITS
from stock_cases.stock import Stock, bitwise, bounded, configured, flag, imprecise

_SITES: tuple[DelaySite, ...] = (
    "before_all_gather",
    "before_reduce_scatter",
    "before_all_reduce",
    "after_forward",
    "after_backward",
    "before_step",
    "after_step",
)
_HSDP = Mesh(replicate=2, shard=2)
_EVEN = chain(a=Linear(out=8), r=Activation(), b=Linear(out=4))
"""With inputs of width 4 every dimension of every parameter is a multiple of 4."""

_LINEAR = Linear(out=3)
_PARTIAL: tuple[Op, ...] = (ops.Forward(outputs=(0,)), BACKWARD, STEP, ZERO)
_TAKEN_BACK: tuple[CommunicationOption, ...] = (
    *("sum", "allocate", "two_buffers", "separate_group", "keep_storage", "zeros_for_unused"),
)
_FINALIZE: tuple[Literal["wait", "async"], ...] = ("wait", "async")


def told(option: CommunicationOption, **options: Any) -> Stock:
    """Every group has been told the same."""
    model = options.get("model") or two_linears()
    paths = (*(child.name for child in model.children), ROOT)
    return bitwise(wrap=configured(*paths, communication=(option,)), **options)


_ZEROS = (
    "not applicable: zeros for parameters without a gradient, which only groups of fully_shard "
    "reduce"
)
_UNSHARDING: tuple[Op, ...] = (
    *(ops.Unshard(), FORWARD, ops.Reshard(), BACKWARD, STEP, ZERO),
    *(ops.Unshard(target="a", async_op=True), AGAIN, BACKWARD, STEP, ZERO),
    *(ops.Unshard(async_op=True, wait=True), FORWARD, BACKWARD, STEP),
)
SHARDING = {
    "reshard, set while training": bounded(
        schedule=(flag("reshard_after_forward", False, "a"), *TWO_STEPS)
    ),
    "explicit unshards": bounded(schedule=_UNSHARDING),
    "offloaded gradients that a scaler looks through": bitwise(
        None,
        wrap=configured("a", "b", ROOT, offload="unpinned"),
        optimizer=Optimizer(grad_scaler="finite"),
    ),
    "offloaded, with every delay": bounded(
        mesh=_HSDP,
        wrap=configured("a", "b", ROOT, offload="unpinned"),
        delays=tuple(Delay(site=site, milliseconds=1, ranks="others") for site in _SITES),
    ),
    **{
        f"{word}, told late and taken back": bitwise(
            wrap=groups("a", "b", ROOT),
            schedule=(
                *(FORWARD, BACKWARD, ops.Tell(word=word), STEP, ZERO, FORWARD, BACKWARD),
                *(ops.Tell(word=word, on=False, target="a"), STEP, ZERO, FORWARD, BACKWARD, STEP),
            ),
            **({"ddp": _ZEROS} if word == "zeros_for_unused" else {}),
        )
        for word in _TAKEN_BACK
    },
    "memory on the device is looked at": bitwise(observe="memory"),
    "streams are watched": bitwise(observe="races", wrap=groups("a", "b", ROOT)),
    "prefetch in both directions": bitwise(
        wrap=(
            WrapGroup(modules=("a",), forward_prefetch=("b",)),
            WrapGroup(modules=("b",), backward_prefetch=("a",)),
            *groups(ROOT),
        )
    ),
    "sharded along the last dimension and the largest": bitwise(
        _EVEN,
        wrap=(
            WrapGroup(modules=("a",), shard_dim="last"),
            WrapGroup(modules=(ROOT,), shard_dim="largest"),
        ),
        inputs=float_inputs(4),
    ),
    "gathered with their signs changed, and with their signs apart": bitwise(
        wrap=(
            WrapGroup(modules=("a",), all_gather_extension="negated"),
            WrapGroup(modules=(ROOT,), all_gather_extension="signs_apart"),
        ),
    ),
    **{
        f"adapters {how}": bounded(
            ADAPTED,
            (*TWO_STEPS, ops.SaveState(), ops.CorruptState(), ops.LoadState()),
            wrap=groups("a", ROOT),
            freezes=(Freeze(target="a.base"), Freeze(target="b")),
            optimizer=Optimizer(kind="adam", lr=0.01),
            **more,
        )
        for how, more in (
            ("before wrapping", {"engines": ("fully_shard", "ddp")}),
            (
                "after wrapping",
                {
                    "ignored": ("a.down", "a.up"),
                    "ignored_by": "adding",
                    "ddp": "not applicable: modules are added to the model after it was wrapped",
                },
            ),
        )
    },
    "ignored, and built on the meta device": bitwise(ignored=("b",), init="meta"),
    **{
        f"drawn by {init}, on {where}": bitwise(
            chain(a=Linear(out=8), b=Linear(out=8)),  # orthogonal_ needs as many rows as columns
            wrap=configured("a", ROOT, drawn=init),
            inputs=float_inputs(4),
            init=where,
        )
        for init, where in zip(INITS, itertools.cycle(("meta", "device")))
    },
    "compiled": bounded(compile="eager", wrap=groups(ROOT)),
    "compiled through autograd": bounded(compile="aot_eager", wrap=groups(ROOT)),
}

COMMUNICATION = {
    "collectives with every option": bitwise(
        wrap=(
            WrapGroup(modules=("a",), communication=("sum", "allocate", "two_buffers", "hook")),
            WrapGroup(modules=("b",), communication=("hook",)),
            *groups(ROOT),
        )
    ),
    "all-gathers and reduce-scatters of the user's, on a mesh of replicas": bounded(
        mesh=_HSDP,
        wrap=configured("a", "b", ROOT, communication=("custom_gather", "custom_scatter")),
    ),
    "a stream for the all-reduce hook": told("hook_stream"),
    "reduce-scatters in a group of their own": told("separate_group"),
    "unsharded memory that is kept": told("keep_storage"),
    "zeros for parameters without a gradient": told(
        "zeros_for_unused",
        model=Block(
            children=children(a=_LINEAR, b=_LINEAR, c=_LINEAR),
            nodes=(call("h", "a", "x"), call("y", "b", "h"), call("z", "c", "h")),
            outputs=("y", "z"),
            returns="tuple",
        ),
        schedule=(*_PARTIAL, ops.Forward(batch=1, outputs=(1,)), BACKWARD, STEP),
        optimizer=Optimizer(kind="adamw", lr=0.01, weight_decay=0.1),
        ddp=_ZEROS,
    ),
    "an embedding that is not unsharded in backward": bitwise(
        chain(e=Embedding(vocab=8, dim=4), r=Activation(), b=_LINEAR),
        inputs=Inputs(batch=2, seq=3, tensors=(TensorSpec(kind="ids", size=6),)),
        wrap=(
            WrapGroup(modules=("e",), communication=("no_backward_unshard",)),
            *groups("b", ROOT),
        ),
    ),
    "streams that two roots share": bitwise(
        wrap=configured("a", "b", communication=("share_streams",))
    ),
    "modules that run by themselves before the root, each its own root": bounded(
        schedule=(
            *(flag("requires_gradient_sync", False), ops.Forward(target="a"), BACKWARD),
            *(flag("requires_gradient_sync", True), ops.Forward(target="b"), BACKWARD),
            *(ops.Forward(target="a", batch=1), BACKWARD, STEP),
        ),
        engines=("fully_shard",),
    ),
    "a module that runs by itself first in a model that was built anew, and is its own root": told(
        "zeros_for_unused",
        schedule=(
            *(
                *TWO_STEPS,
                ops.SaveState(),
                ops.CorruptState(how="rebuild"),
                ops.LoadState(),
                ops.Unshard(),
            ),
            *(ops.Forward(target="a", batch=2), BACKWARD, ops.Reshard(), STEP),
        ),
        engines=("fully_shard",),
    ),
}

FINALIZED = {
    f"backward finalized by hand, {how}": bounded(
        schedule=(
            *(flag("requires_gradient_sync", False), FORWARD, BACKWARD),
            *(flag("requires_gradient_sync", True), AGAIN, BACKWARD, STEP),
        ),
        finalize=how,
    )
    for how in _FINALIZE
}
_ONCE: tuple[Op, ...] = (FORWARD, BACKWARD, STEP, ZERO)
_ON = (
    "not applicable: an iteration ends with an exception, after which only fully_shard says how "
    "to go on"
)
ABORTED = {
    "an exception in forward": bitwise(
        schedule=(*_ONCE, ops.Abort(target="b"), AGAIN, BACKWARD, STEP), ddp=_ON
    ),
    "an exception while gradients wait": bitwise(
        schedule=(
            *(flag("requires_gradient_sync", False), FORWARD, BACKWARD),
            *(flag("requires_gradient_sync", True), ops.Abort(target="b"), AGAIN, BACKWARD, STEP),
        ),
        ddp=_ON,
    ),
    "an exception in backward": bitwise(
        schedule=(*_ONCE, ops.Abort(target="a", during="backward"), AGAIN, BACKWARD, STEP), ddp=_ON
    ),
}

_POLICY = "not applicable: mixed precision or rounded all-gathers, which DDP does not know"

PRECISIONS = {
    "gathered in float8": bounded(
        wrap=(*groups("a"), WrapGroup(modules=(ROOT,), all_gather_extension="float8")),
        ddp=_POLICY,
    ),
    "gathered in float8, and computed with in bfloat16": imprecise(
        wrap=configured(
            ROOT, all_gather_extension="float8", precision=Precision(param="bfloat16")
        ),
        ddp=_POLICY,
    ),
    "bfloat16, reduced in it": imprecise(
        wrap=configured(ROOT, precision=Precision(param="bfloat16")), ddp=_POLICY
    ),
    "float16, reduced in float32, with outputs of float32": imprecise(
        wrap=configured(
            ROOT, precision=Precision(param="float16", reduce="float32", output="float32")
        ),
        ddp=_POLICY,
    ),
    "values that are apart, reduced in float32": imprecise(
        wrap=configured(ROOT, precision=Precision(param="bfloat16", reduce="float32")),
        values="apart",
        ddp=_POLICY,
    ),
    "reduced in bfloat16": imprecise(
        wrap=configured(ROOT, precision=Precision(reduce="bfloat16")), ddp=_POLICY
    ),
    "a group that does not cast its inputs, beside one that does": imprecise(
        wrap=(
            *configured("a", precision=Precision(param="bfloat16")),
            *configured("b", precision=Precision(param="bfloat16", cast_inputs=False)),
            *groups(ROOT),
        ),
        ddp=_POLICY,
    ),
    "vectors that keep their dtype": imprecise(
        chain(a=Linear(out=5, bias=False), s=RawParameter(), b=Linear(out=3, bias=False)),
        wrap=configured(
            *("a", "s", "b", ROOT),
            precision=Precision(param="bfloat16", keep="vectors", output="float32"),
        ),
        ddp=_POLICY,
    ),
    "a parameter in bfloat16": imprecise(
        chain(a=Linear(out=4), v=RawParameter(), b=Linear(out=3)),
        dtypes=(ParameterDtype(target="v", dtype="bfloat16"),),
    ),
}
