"""Wrapping, meshes and freezing."""

from __future__ import annotations

from cases import BACKWARD, FORWARD, ROOT, STEP, ZERO, chain, groups

from fuzzshard.case.case import Freeze, Mesh
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import Reshard, SetFlag, SetRequiresGrad
from stock_cases.stock import bitwise, bounded

UNFROZEN = (
    "not applicable: a parameter frozen at construction is unfrozen: DDP never synchronises it"
)

_DEEP = chain(inner=chain(a=Linear(out=4), b=Linear(out=4)), c=Linear(out=3))

WRAPS = {
    "nothing wrapped": bitwise(wrap=()),
    "the root only": bitwise(wrap=groups(ROOT)),
    "every module and the root": bitwise(),
    "one module, and the root for the rest": bitwise(wrap=groups("b", ROOT)),
    "nested groups": bitwise(_DEEP, wrap=groups("inner.a", "inner", ROOT)),
    "a list group": bitwise(wrap=groups(("a", "b"), ROOT)),
    "groups without a root": bitwise(wrap=groups("a", "b")),
    "a module in no group": bitwise(wrap=groups("a")),
    "reshard after forward": bitwise(wrap=groups("a", "b", ROOT, reshard=True)),
    "no reshard after forward": bitwise(wrap=groups("a", "b", ROOT, reshard=False)),
    "reshard to groups of all ranks": bounded(mesh=4, wrap=groups("a", "b", ROOT, reshard=4)),
    "reshard to groups of one rank": bounded(mesh=4, wrap=groups("a", "b", ROOT, reshard=1)),
}

MESHES = {
    "one rank": bitwise(mesh=1),
    "three ranks": bounded(mesh=3),
    "four ranks": bounded(mesh=4),
    "more ranks than rows": bounded(chain(a=Linear(out=2), b=Linear(out=1)), mesh=4),
    "even shards": bounded(chain(a=Linear(out=8), b=Linear(out=4)), mesh=4),
    "hsdp 2x2": bounded(mesh=Mesh(replicate=2, shard=2)),
    "hsdp 4x1": bounded(mesh=Mesh(replicate=4, shard=1)),
    "hsdp 1x4": bounded(mesh=Mesh(replicate=1, shard=4)),
    "hsdp 1x1": bitwise(mesh=Mesh(replicate=1, shard=1)),
    "two axes flattened": bitwise(mesh=Mesh(shard=2, made="flattened")),
    "two axes flattened beside replicas": bounded(
        mesh=Mesh(replicate=2, shard=2, made="flattened")
    ),
    "an axis cut in two": bounded(mesh=Mesh(replicate=2, shard=2, made="unflattened")),
    "made of process groups": bounded(mesh=Mesh(replicate=2, shard=2, made="from_groups")),
    "ranks lie column by column": bounded(mesh=Mesh(replicate=2, shard=2, made="transposed")),
    "the last rank is the first": bitwise(mesh=Mesh(shard=2, made="reversed")),
}


def _toggled(*values: bool, target: str = "a") -> tuple[Op, ...]:
    """A training step before and after each change of ``requires_grad``."""
    ops: tuple[Op, ...] = (FORWARD, BACKWARD, STEP, ZERO)
    for value in values:
        ops += (SetRequiresGrad(target=target, value=value), FORWARD, BACKWARD, STEP, ZERO)
    return ops


FREEZES = {
    "a parameter frozen before wrapping": bitwise(freezes=(Freeze(target="a.weight"),)),
    "a module frozen before wrapping": bitwise(freezes=(Freeze(target="a"),)),
    "a module frozen after wrapping": bitwise(freezes=(Freeze(target="b", after_wrap=True),)),
    "frozen and unfrozen during training": bitwise(None, _toggled(False, True)),
    "unfrozen during training": bitwise(
        None, _toggled(True), freezes=(Freeze(target="a"),), ddp=UNFROZEN
    ),
    "frozen while gradients wait for their synchronisation": bitwise(
        None,
        (
            SetFlag(flag="requires_gradient_sync", value=False),
            *(FORWARD, BACKWARD, SetRequiresGrad(target="b", value=False)),
            SetFlag(flag="requires_gradient_sync", value=True),
            *(FORWARD, BACKWARD, STEP),
        ),
        ddp="not applicable: a freeze while gradients wait for their synchronisation, of which "
        "DDP's hooks see no more",
    ),
    "frozen between forward and backward": bitwise(
        None,
        (
            FORWARD,
            Reshard(),
            SetRequiresGrad(target="b", value=False),
            BACKWARD,
            STEP,
            ZERO,
            FORWARD,
            BACKWARD,
            STEP,
        ),
    ),
}
