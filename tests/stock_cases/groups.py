"""Options of ``fully_shard`` and of its groups, precision, relations, delays."""

from __future__ import annotations

from typing import Any

from cases import (
    AGAIN,
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    TWO_STEPS,
    ZERO,
    chain,
    float_inputs,
    groups,
)

from fuzzshard.case.case import Checkpoint, Mesh, WrapGroup
from fuzzshard.case.graph import (
    Activation,
    Linear,
    RawParameter,
)
from fuzzshard.case.options import (
    Delay,
    DelaySite,
    ParameterDtype,
    Precision,
    Relation,
)
from fuzzshard.case.schedule import (
    Op,
    Reshard,
    Unshard,
)
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

SHARDING = {
    "offloaded, with every delay": bounded(
        mesh=_HSDP,
        wrap=configured("a", "b", ROOT, offload="unpinned"),
        delays=tuple(Delay(site=site, milliseconds=1, ranks="others") for site in _SITES),
    ),
    "memory on the device is looked at": bitwise(observe="memory"),
    "prefetch in both directions": bitwise(
        wrap=(
            WrapGroup(modules=("a",), forward_prefetch=("b",)),
            WrapGroup(modules=("b",), backward_prefetch=("a",)),
            *groups(ROOT),
        )
    ),
    "collectives with every option": bitwise(
        wrap=(
            WrapGroup(modules=("a",), communication=("sum", "allocate", "two_buffers", "hook")),
            WrapGroup(modules=("b",), communication=("hook",)),
            *groups(ROOT),
        )
    ),
    "collectives of replicas with every option": bounded(
        mesh=_HSDP, wrap=configured("a", ROOT, communication=("sum", "allocate", "two_buffers", "hook"))
    ),
    "sharded along the last dimension and the largest": bitwise(
        _EVEN,
        wrap=(WrapGroup(modules=("a",), shard_dim="last"), WrapGroup(modules=(ROOT,), shard_dim="largest")),
        inputs=float_inputs(4),
    ),
    "ignored, and built on the meta device": bitwise(ignored=("b",), init="meta"),
    "compiled": bounded(compile="eager", wrap=groups(ROOT)),
    "compiled through autograd": bounded(compile="aot_eager", wrap=groups(ROOT)),
}

_POLICY = "not applicable: the wrap groups have a policy of mixed precision, which DDP does not know"

PRECISIONS = {
    "bfloat16, reduced in it": imprecise(
        wrap=configured(ROOT, precision=Precision(param="bfloat16")), ddp=_POLICY
    ),
    "float16, reduced in float32, with outputs of float32": imprecise(
        wrap=configured(ROOT, precision=Precision(param="float16", reduce="float32", output="float32")),
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
    "a parameter in bfloat16": imprecise(
        chain(a=Linear(out=4), v=RawParameter(), b=Linear(out=3)),
        dtypes=(ParameterDtype(target="v", dtype="bfloat16"),),
    ),
}


def related(relation: Relation, **options: Any) -> Stock:
    """``fully_shard`` runs twice, with that aspect changed, and gives equal bits."""
    return bounded(**{"mesh": 2, **options}, relation=relation)


_UNSHARDING: tuple[Op, ...] = (
    *(Unshard(), FORWARD, Reshard(), BACKWARD, STEP, ZERO),
    *(Unshard(target="a", async_op=True), AGAIN, BACKWARD, STEP),
)

RELATIONS = {
    "reshard, set while training": related(
        "reshard", schedule=(flag("reshard_after_forward", False, "a"), *TWO_STEPS)
    ),
    "prefetch": related("prefetch"),
    "checkpoint": related("checkpoint", checkpoints=(Checkpoint(module="a"),)),
    "delay": related("delay", delays=(Delay(site="before_all_gather", milliseconds=1),)),
    "unshard": related("unshard", schedule=_UNSHARDING),
    "plan": related("plan"),
    "mesh": related("mesh"),
}
