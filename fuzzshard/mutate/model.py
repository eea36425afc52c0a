"""Mutations of the model: calls and modules that come, go or run twice; and whatever the reducer
would do.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.edit import blocks, edit_block, map_nodes, map_values
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import (
    Alias,
    Block,
    Call,
    Child,
    Module,
    Node,
    TensorOp,
    join,
    resolve,
    value_node,
)
from fuzzshard.parts.leaves import LEAVES
from fuzzshard.shrink.tiers import TIERS


def simplify(rng: Random, case: Case, other: Case) -> Case | None:
    """One edit of one pass of the reducer: something less, or the same more plainly."""
    each = rng.choice(rng.choice(TIERS))
    edits = list(each.edits(case))
    return rng.choice(edits)(case) if edits else None


def repeat_call(rng: Random, case: Case, other: Case) -> Case | None:
    """A child is called once more, on what the block has computed by then."""

    def change(path: str, block: Block) -> Block | None:
        calls = [
            n for n in block.nodes if isinstance(n, Call) and not _returns_several(case, path, n)
        ]
        if not calls:
            return None
        call = rng.choice(calls)
        return chained(
            block, replace(call, name=fresh(block, "again"), args=(call.name,) * len(call.args))
        )

    return _in_some_block(rng, case, change)


def add_module(rng: Random, case: Case, other: Case) -> Case | None:
    """A new leaf behind some node, or beside it; or an alias of a module that is there."""

    def change(path: str, block: Block) -> Block | None:
        names = [n.name for n in block.nodes if not _returns_several(case, path, n)]
        if not names:
            return None
        value, width = rng.choice(names), rng.choice((2, 3, 4, 6))
        module: Module = rng.choice([leaf for kind in LEAVES for leaf in kind.additions(width)])
        others = [p for p, m in facts(case).modules.items() if p and not isinstance(m, Block)]
        if others and rng.random() < 0.3:
            module = Alias(target=rng.choice(others))
        name = fresh(block, "extra")
        grown = replace(block, children=(*block.children, Child(name=name, module=module)))
        call = Call(
            name=fresh(block, "value"), module=name, args=(value,), grad=rng.random() < 0.85
        )
        if rng.random() < 0.2:  # an unused value
            return replace(grown, nodes=(*grown.nodes, call))
        return chained(grown, call)

    return _in_some_block(rng, case, change)


def residual(rng: Random, case: Case, other: Case) -> Case | None:
    """Two values of a block joined where one of them was read."""

    def change(path: str, block: Block) -> Block | None:
        names = [n.name for n in block.nodes if not _returns_several(case, path, n)]
        if len(names) < 2:
            return None
        first, second = (names[i] for i in sorted(rng.sample(range(len(names)), 2)))
        op = TensorOp(
            name=fresh(block, "joined"), op=rng.choice(("add", "mul")), args=(second, first)
        )
        return chained(block, op)

    return _in_some_block(rng, case, change)


def partial_loss(rng: Random, case: Case, other: Case) -> Case | None:
    """Other outputs of a forward enter the loss."""
    found = facts(case)
    offered = [
        (i, op, len(found.output_values[op.call.target]))
        for i, op in enumerate(case.schedule)
        if op.call and len(found.output_values[op.call.target]) > 1
    ]
    if not offered:
        return None
    index, op, count = rng.choice(offered)
    outputs = tuple(i for i in range(count) if rng.random() < 0.5) or None
    ops = [replace(op, outputs=outputs) if i == index else o for i, o in enumerate(case.schedule)]
    return replace(case, schedule=tuple(ops))


def _in_some_block(
    rng: Random, case: Case, change: Callable[[str, Block], Block | None]
) -> Case | None:
    path, block = rng.choice(list(blocks(case.model)))
    changed = change(path, block)
    return (
        replace(case, model=edit_block(case.model, path, lambda _: changed)) if changed else None
    )


def chained(block: Block, node: Node) -> Block:
    """``node`` follows its first argument, and is read in its place by what comes after."""
    value = node.args[0]
    names = [n.name for n in block.nodes]
    at = max(names.index(value_node(a)) for a in node.args if value_node(a) in names) + 1
    before, after = block.nodes[:at], block.nodes[at:]

    def rename(read: str) -> str:
        return node.name if read == value else read

    rest = map_values(replace(block, nodes=after), rename)
    return replace(rest, nodes=(*before, node, *rest.nodes))


def no_grad_call(rng: Random, case: Case, other: Case) -> Case | None:
    """A call without gradients, or with them again."""

    def change(path: str, block: Block) -> Block | None:
        calls = [n.name for n in block.nodes if isinstance(n, Call)]
        if not calls:
            return None
        name = rng.choice(calls)

        def flip(node: Node) -> Node:
            if isinstance(node, Call) and node.name == name:
                return replace(node, grad=not node.grad)
            return node

        return map_nodes(block, flip)

    return _in_some_block(rng, case, change)


def _returns_several(case: Case, path: str, node: Node) -> bool:
    """Whether the value of a node cannot be read by its name alone."""
    target = resolve(case.model, join(path, node.module)) if isinstance(node, Call) else None
    return target is not None and isinstance(target[1], Block) and target[1].returns != "tensor"


def fresh(block: Block, stem: str) -> str:
    """A name that neither a value nor a child of the block has."""
    taken = {*block.inputs, *(n.name for n in block.nodes), *(c.name for c in block.children)}
    return next(name for i in range(len(taken) + 1) if (name := f"{stem}{i}") not in taken)
