"""Ranks that call other modules than their peers: what FSDP1 promises to notice in debug level
DETAIL.

No other engine makes a promise about it, so these cases are a family of their own.
Source: the ``_ExecOrderData`` class in torch/distributed/fsdp/_exec_order_utils.py.
"""

from __future__ import annotations

from fuzzshard.case.case import Case, Freeze, Inputs, Mesh, TensorSpec, WrapGroup
from fuzzshard.case.graph import Block, Call, Child, TensorOp
from fuzzshard.case.options import Expect
from fuzzshard.parts import op, ops
from fuzzshard.parts.engines.fsdp1 import FullyShardedDataParallel
from fuzzshard.parts.leaves import affine
from fuzzshard.parts.losses import SIMPLEST
from fuzzshard.parts.options.fsdp1 import FSDP1, FSDP1_OPTIONS
from fuzzshard.strategies.tape import Tape

ERROR = r"^(Forward order differs across ranks)"
WARNING = (
    r"^(Forward order differs from that of the first iteration on rank \d+\. "
    r"Collectives are unchecked and may give incorrect results or hang)"
)


def diverging(tape: Tape, largest_mesh: int) -> Case:
    """Return the case in which all ranks but the first take another path: in the first iteration
    an error, later a warning.

    Both paths have equally many parameters, so the collectives that go on unchecked do not hang.
    """
    width, inner = tape.pick((4, 3, 6, 8)), tape.pick((4, 3, 6, 8))
    flip = (
        ops.choosing(1, ranks="others"),
        ops.toggling("second", value=False, ranks="others"),
        ops.toggling("other", value=True, ranks="others"),
    )
    before: tuple[op.Op, ...] = ()
    if tape.chance(50):
        before = tuple(each for i in range(1 + tape.below(3)) for each in ops.iteration(i))
    used = len(before) // 2
    after: tuple[op.Op, ...] = (ops.running(op.Call(batch=used)),)
    if before:
        after = (*ops.iteration(used), *ops.iteration(used + 1))
    expect = Expect(
        kind="warning" if before else "error",
        engine=FullyShardedDataParallel.name,
        pattern=WARNING if before else ERROR,
        op=len(before) + len(flip),
        ranks="others" if before else "all",
    )
    return Case(
        seed=tape.below(256),
        model=_two_paths(inner, width, tape.chance(50)),
        inputs=Inputs(batch=2, tensors=(TensorSpec(size=width),)),
        mesh=Mesh(shard=2 + tape.below(min(largest_mesh, 4) - 1)),
        schedule=(*before, *flip, *after),
        wrap=tuple(WrapGroup(modules=(path,)) for path in ("second", "other", "")),
        freezes=(Freeze(target="other"),),
        loss=SIMPLEST,
        engines=(FullyShardedDataParallel.name,),
        fsdp1=FSDP1(**{o.name: o.draw_for_orders(tape) for o in FSDP1_OPTIONS}),
        expect=(expect,),
    )


def _two_paths(inner: int, width: int, relu: bool) -> Block:
    nodes: list[Call | TensorOp] = [Call(name="h0", module="first", args=("x",))]
    if relu:
        nodes.append(TensorOp(name="h1", op="relu", args=("h0",)))
    nodes.append(
        Call(name="h2", module="second", args=("h1" if relu else "h0",), alternatives=("other",))
    )
    children = (
        Child(name="first", module=affine(inner)),
        Child(name="second", module=affine(width, bias=False)),
        Child(name="other", module=affine(width, bias=False)),
    )
    return Block(children=children, nodes=tuple(nodes), outputs=("h2",))
