"""Ranks that call other modules than their peers: what FSDP1 promises to notice in debug level
DETAIL.

No other engine makes a promise about it, so these cases are a family of their own.
Source: the ``_ExecOrderData`` class in torch/distributed/fsdp/_exec_order_utils.py.
"""

from __future__ import annotations

from fuzzshard.case.case import Case, Freeze, Inputs, Mesh, TensorSpec, WrapGroup
from fuzzshard.case.graph import Block, Call, Child, TensorOp
from fuzzshard.case.options import Expect
from fuzzshard.parts.engines.fsdp1 import FullyShardedDataParallel
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import Backward, Forward, SetPath, SetRequiresGrad
from fuzzshard.parts.options.fsdp1 import FSDP1, FSDP1_OPTIONS
from fuzzshard.strategies.tape import Tape

ERROR = r"^(Forward order differs across ranks)"
WARNING = (
    r"^(Forward order differs from that of the first iteration on rank \d+\. "
    r"Collectives are unchecked and may give incorrect results or hang)"
)


def diverging(tape: Tape, largest_mesh: int) -> Case:
    """All ranks but the first take another path: in the first iteration an error, later a warning.

    Both paths have equally many parameters, so the collectives that go on unchecked do not hang.
    """
    width, inner = tape.pick((4, 3, 6, 8)), tape.pick((4, 3, 6, 8))
    flip: tuple[Op, ...] = (
        SetPath(path=1, ranks="others"),
        SetRequiresGrad(target="second", value=False, ranks="others"),
        SetRequiresGrad(target="other", value=True, ranks="others"),
    )
    before: tuple[Op, ...] = ()
    if tape.chance(50):
        before = tuple(
            op for i in range(1 + tape.below(3)) for op in (Forward(batch=i), Backward())
        )
    used = len(before) // 2
    after: tuple[Op, ...] = (Forward(batch=used),)
    if before:
        after = (*after, Backward(), Forward(batch=used + 1), Backward())
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
        loss="sum",
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
        Child(name="first", module=Linear(out=inner)),
        Child(name="second", module=Linear(out=width, bias=False)),
        Child(name="other", module=Linear(out=width, bias=False)),
    )
    return Block(children=children, nodes=tuple(nodes), outputs=("h2",))
