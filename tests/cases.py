"""Builders for hand-written cases: a chain of modules, two steps of training, every module its own
group.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import pytest

from fuzzshard.analysis.schedule_state import ScheduleState
from fuzzshard.case.case import Case, Inputs, Mesh, TensorSpec, WrapGroup
from fuzzshard.case.graph import Block, Call, Child, Module, Node, TensorOp
from fuzzshard.case.options import TensorParallel
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.moments import Moment
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import Backward, Forward, Step, ZeroGrad
from fuzzshard.parts.part import Part

FORWARD, BACKWARD, STEP, ZERO = Forward(), Backward(), Step(), ZeroGrad()
AGAIN = Forward(batch=1)
TWO_STEPS: tuple[Op, ...] = (FORWARD, BACKWARD, STEP, ZERO, AGAIN, BACKWARD, STEP)
ROOT = ""


def moments_of_op(at: ScheduleState) -> frozenset[Moment]:
    """When the op that comes next runs: a forward may disable gradients for itself."""
    alone = at.op.call is not None and not at.op.call.grad
    return at.moments | ({"under_no_grad"} if alone else set())


def skip_if_torch_lacks(case: Case) -> None:
    """Skip a test whose case has what the torch at hand does not."""
    from fuzzshard.engines.registry import lacking

    for engine in case.engines:
        if lacks := lacking(case, engine):
            pytest.skip(f"this torch has no {lacks}")


def chain(**modules: Module) -> Block:
    """A block that calls its children one after another, in the order they are given."""
    nodes, value = [], "x"
    for index, name in enumerate(modules):
        nodes.append(Call(name=f"h{index}", module=name, args=(value,)))
        value = f"h{index}"
    return Block(children=children(**modules), nodes=tuple(nodes), outputs=(value,))


def children(**modules: Module) -> tuple[Child, ...]:
    """Submodules by name."""
    return tuple(Child(name=name, module=module) for name, module in modules.items())


def call(name: str, module: str, *args: str, grad: bool = True) -> Call:
    """A node that calls a child."""
    return Call(name=name, module=module, args=args, grad=grad)


def tensor_op(name: str, op: Any, *args: str) -> TensorOp:
    """A node that computes with tensors."""
    return TensorOp(name=name, op=op, args=args)


def graph(*nodes: str | Node, outputs: str = "", inputs: str = "x", **given: Any) -> Block:
    """A block of nodes like ``"h = a(x)"``, with its modules by name.

    What is no module is an operation on tensors. Without ``outputs`` the last value is returned.
    """
    modules = {name: each for name, each in given.items() if isinstance(each, Part)}
    options = {name: each for name, each in given.items() if name not in modules}
    made = tuple(_node(each, modules) if isinstance(each, str) else each for each in nodes)
    returned = tuple(outputs.split()) or (made[-1].name,)
    named = tuple(inputs.split())
    return Block(
        children=children(**modules), nodes=made, outputs=returned, inputs=named, **options
    )


def _node(text: str, modules: Collection[str]) -> Node:
    found = re.fullmatch(r"(\w+) = (\w+)\((.*)\)( without grad)?", text)
    assert found, text
    name, what, arguments, without = found.groups()
    args = tuple(filter(None, arguments.split(", ")))
    if what in modules:
        return call(name, what, *args, grad=not without)
    return tensor_op(name, what, *args)


def float_inputs(width: int = 5, *, seq: int = 0, count: int = 1) -> Inputs:
    """Two rows of ``width`` features that require gradients."""
    return Inputs(batch=2, seq=seq, tensors=(TensorSpec(size=width, requires_grad=True),) * count)


def groups(
    *modules: str | tuple[str, ...], reshard: bool | int | None = None
) -> tuple[WrapGroup, ...]:
    """One wrap group for each path, or for each tuple of paths."""
    return tuple(
        WrapGroup(modules=(m,) if isinstance(m, str) else m, reshard_after_forward=reshard)
        for m in modules
    )


def colwise(module: str, **layouts: Any) -> TensorParallel:
    """A column parallel module that returns a DTensor unless told else: its shards need not be
    even.
    """
    return TensorParallel(
        module=module, style="colwise", **{"local_output": "output" in layouts, **layouts}
    )


def rowwise(module: str, **layouts: Any) -> TensorParallel:
    """A row parallel module."""
    return TensorParallel(module=module, style="rowwise", **layouts)


def two_linears() -> Block:
    """Linear(5, 5), ReLU, Linear(5, 3): the smallest model with two groups that depend on each
    other.
    """
    return chain(a=Linear(out=5), r=Activation(), b=Linear(out=3))


def make_case(
    model: Block | None = None,
    schedule: tuple[Op, ...] = TWO_STEPS,
    *,
    mesh: int | Mesh = 2,
    wrap: tuple[WrapGroup, ...] | None = None,
    inputs: Inputs | None = None,
    **options: Any,
) -> Case:
    """A case on :func:`two_linears`, with every child of the root and the root wrapped, unless
    told else.
    """
    model = model or two_linears()
    return Case(
        seed=3,
        model=model,
        inputs=inputs or float_inputs(),
        mesh=Mesh(shard=mesh) if isinstance(mesh, int) else mesh,
        schedule=schedule,
        wrap=groups(*(child.name for child in model.children), ROOT) if wrap is None else wrap,
        **options,
    )


def adapted(base: Module, rank: int, out: int) -> Block:
    """A module with a low-rank adapter beside it."""
    down, up = Linear(out=rank, bias=False), Linear(out=out, bias=False)
    return Block(
        children=children(base=base, down=down, up=up),
        nodes=(
            *(call("h0", "base", "x"), call("h1", "down", "x"), call("h2", "up", "h1")),
            tensor_op("h3", "add", "h0", "h2"),
        ),
        outputs=("h3",),
    )


ADAPTED = chain(a=adapted(Linear(out=4), 1, 4), r=Activation(), b=Linear(out=3))
"""A linear with an adapter before another one."""
