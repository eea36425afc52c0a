"""Low-rank adapters (https://arxiv.org/abs/2106.09685): a block that returns ``base(x) +
up(down(x))``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fuzzshard.case.graph import Block, Call, TensorOp, join, walk
from fuzzshard.parts.leaf import Leaf


class Adapter(NamedTuple):
    """The paths of the module that is adapted, and of the two that adapt it."""

    base: str
    down: str
    up: str


def adapters(model: Block) -> Iterator[Adapter]:
    """Yield the adapters of a model: every child is a leaf with parameters."""
    for path, module in walk(model):
        if isinstance(module, Block) and (names := _names(module)):
            yield Adapter(*(join(path, name) for name in names))


def _names(block: Block) -> tuple[str, str, str] | None:
    calls = {node.name: node for node in block.nodes if isinstance(node, Call)}
    match block.nodes:
        case (*_, TensorOp(op="add", args=(first, second))) if (
            len(calls) == len(block.children) == 3
        ):
            base, up = calls.get(first), calls.get(second)
            down = calls.get(up.args[0]) if up else None
            leaves = (
                isinstance(c.module, Leaf) and c.module.has_parameters for c in block.children
            )
            if base and up and down and base.args == down.args and all(leaves):
                return base.module, down.module, up.module
    return None
