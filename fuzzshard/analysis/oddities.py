"""Oddities that a reader stumbles over; of equally large cases :func:`size_order` prefers the one
with fewer.

Each of these raises a question that has nothing to do with the failure, unless the failure needs
it: why is this module never called, why does this width not divide, why is this flag set so early?
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from msgspec.structs import replace

from fuzzshard.analysis.batches import used_batches
from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.dims import get_dims
from fuzzshard.case.graph import Block, Call, join, value_node, walk


def count_unused(case: Case) -> int:
    """Count modules that no forward of the root calls, and inputs and nodes that nothing reads."""
    found = inferred(case)
    return (
        len(found.modules) - len(found.called) + sum(len(list(unread(b))) for b in _blocks(case))
    )


def unread(block: Block) -> Iterator[str]:
    """Return the inputs and nodes of a block that nothing in it reads."""
    read = {value_node(v) for v in (*block.outputs, *(a for n in block.nodes for a in n.args))}
    return (name for name in (*block.inputs, *(n.name for n in block.nodes)) if name not in read)


def count_uneven(case: Case) -> int:
    """Count widths that the shard axis does not divide, so that some shard is padded or empty."""
    return sum(size % case.mesh.shard > 0 for size in get_dims(case).values())


def plan_depth(case: Case) -> int:
    """Return how deep in the model the wrapped modules are: 0 for the root, 1 for each of its
    children.
    """
    return sum(len(path.split(".")) for group in case.wrap for path in group.modules if path)


def flag_distance(case: Case) -> int:
    """Return the ops between those that set something and the forward that comes next, summed."""
    total = waiting = 0
    for op in case.schedule:
        if op.call:
            waiting = 0
        elif op.lane == "switches":
            waiting += 1
        else:
            total += waiting
    return total + waiting


def disorder(case: Case) -> int:
    """Count batches not numbered in order of use; modules not called or not wrapped in
    registration order.
    """
    batches = first_uses(case)
    misnumbered = sum(batch != number for batch, number in batches.items())
    place = places(case)
    calls = sum(_inversions(_called_children(block)) for block in _blocks(case))
    members = sum(_inversions([place[m] for m in group.modules]) for group in case.wrap)
    return (
        misnumbered
        + calls
        + members
        + _inversions([last_place(group, place) for group in case.wrap])
    )


def first_uses(case: Case) -> dict[int, int]:
    """Return for each input batch the number it should have: 0, 1, ... in order of first use."""
    return {batch: number for number, batch in enumerate(used_batches(case))}


def with_first_uses(case: Case) -> Case:
    """Return ``case`` with these numbers."""
    numbers = first_uses(case)
    rows = tuple(
        item if item.batch is None else replace(item, batch=numbers[item.batch])
        for item in case.inputs.rank_batches
    )
    return replace(
        case,
        schedule=tuple(
            replace(op, batch=numbers[op.begins.batch]) if op.begins else op
            for op in case.schedule
        ),
        inputs=replace(case.inputs, rank_batches=rows),
    )


def places(case: Case) -> dict[str, int]:
    """Yield the place of every module in registration order, children before their parents."""

    def visit(path: str, block: Block) -> Iterator[str]:
        for child in block.children:
            here = join(path, child.name)
            if isinstance(child.module, Block):
                yield from visit(here, child.module)
            yield here

    return {path: place for place, path in enumerate((*visit("", case.model), ""))}


def last_place(group: WrapGroup, place: dict[str, int]) -> int:
    """Return where a wrap group belongs: after everything below its members."""
    return max(place[m] for m in group.modules)


def _blocks(case: Case) -> Iterator[Block]:
    return (module for _, module in walk(case.model) if isinstance(module, Block))


def _called_children(block: Block) -> list[int]:
    names = [child.name for child in block.children]
    return [names.index(node.module) for node in block.nodes if isinstance(node, Call)]


def _inversions(numbers: list[int]) -> int:
    return sum(a > b for a, b in itertools.combinations(numbers, 2))
