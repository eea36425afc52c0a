"""Passes over the DAGs of blocks: fewer nodes, arguments, inputs and outputs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.edit import (
    blocks,
    bypass,
    map_calls,
    map_values,
    with_item,
    without,
)
from fuzzshard.case.graph import Block, Call, Node, resolve, value_node
from fuzzshard.parts.op import Op
from fuzzshard.shrink.passes import Edit, change_block, set_block


def nodes(case: Case) -> Iterator[Edit]:
    """Leave out one node: its readers read its i-th argument. Its module stays, uncalled."""
    for position in range(
        max((len(n.args) for _, b in blocks(case.model) for n in b.nodes), default=0)
    ):
        for path, block in blocks(case.model):
            for node in block.nodes:
                if position < len(node.args):
                    yield _bypass(path, node, position)


def _bypass(path: str, node: Node, position: int) -> Edit:
    def change(block: Block) -> Block:
        present = next((n for n in block.nodes if n.name == node.name), None)
        if present is None or position >= len(present.args):
            return block
        return bypass(block, node.name, present.args[position])

    return change_block(path, change)


def arguments(case: Case) -> Iterator[Edit]:
    """Take one argument from a tensor op."""
    for path, block in blocks(case.model):
        for node in block.nodes:
            if not isinstance(node, Call) and len(node.args) > 2:
                for index in range(len(node.args)):
                    fewer = replace(node, args=without(node.args, index))
                    nodes = tuple(fewer if n.name == node.name else n for n in block.nodes)
                    yield set_block(path, nodes=nodes)


def rewire(case: Case) -> Iterator[Edit]:
    """Make an argument or an output an input of the block, or what its node reads."""
    for path, block in blocks(case.model):
        above = {n.name: n.args for n in block.nodes}
        for old in dict.fromkeys((*block.outputs, *(a for n in block.nodes for a in n.args))):
            for new in dict.fromkeys((*block.inputs, *above.get(value_node(old), ()))):
                if new != old:
                    for index, node in enumerate(block.nodes):
                        if old in node.args:
                            args = tuple(new if a == old else a for a in node.args)
                            changed = with_item(block.nodes, index, replace(node, args=args))
                            yield set_block(path, nodes=changed)
                    if old in block.outputs:
                        outputs = tuple(new if o == old else o for o in block.outputs)
                        yield set_block(path, outputs=outputs)


def exchange(case: Case) -> Iterator[Edit]:
    """Let two neighbouring nodes do what the other one does, on their own arguments."""
    for path, block in blocks(case.model):
        for index, (first, second) in enumerate(itertools.pairwise(block.nodes)):
            if len(first.args) == len(second.args):
                swapped = (
                    replace(second, name=first.name, args=first.args),
                    replace(first, name=second.name, args=second.args),
                )
                around = block.nodes[:index], block.nodes[index + 2 :]
                yield set_block(path, nodes=(*around[0], *swapped, *around[1]))


def outputs(case: Case) -> Iterator[Edit]:
    """Leave out one output of a block; a single one is returned as a tensor."""
    for path, block in blocks(case.model):
        for index in range(len(block.outputs)):
            if len(block.outputs) > 1:
                yield drop_output(path, index)
        if block.returns != "tensor" and len(block.outputs) == 1:
            yield functools.partial(_return_tensor, path=path)


def lone_outputs(case: Case) -> Iterator[Edit]:
    """Keep one output of two, still in a tuple or a dict."""
    for path, block in blocks(case.model):
        if len(block.outputs) == 2:
            for index in range(2):
                yield drop_output(path, index, unpack=False)


def drop_output(path: str, index: int, *, unpack: bool = True) -> Edit:
    """Return the edit without one output of the block at ``path``; with ``unpack`` the last one is
    returned as a tensor.
    """

    def shift(value: str, node: str) -> str:
        if value_node(value) != node:
            return value
        number = int(value.split(".")[1])
        return f"{node}.{max(number - (number >= index), 0)}"

    def used(op: Op) -> Op:
        if not (op.call and op.call.target == path and op.call.outputs):
            return op
        kept = tuple(i - (i > index) for i in op.call.outputs if i != index)
        return replace(op, outputs=kept or None)

    def edit(case: Case) -> Case:
        found = resolve(case.model, path)
        if found is None or not isinstance(found[1], Block) or len(found[1].outputs) < 2:
            return case
        case = map_calls(case, path, lambda b, call: map_values(b, lambda v: shift(v, call.name)))
        schedule = tuple(map(used, case.schedule))
        case = change_block(path, lambda b: replace(b, outputs=without(b.outputs, index)))(case)
        case = replace(case, schedule=schedule)
        return _return_tensor(case, path) if unpack and len(found[1].outputs) == 2 else case

    return edit


def _return_tensor(case: Case, path: str) -> Case:
    case = map_calls(
        case,
        path,
        lambda b, call: map_values(b, lambda v: call.name if value_node(v) == call.name else v),
    )
    return set_block(path, returns="tensor")(case)


def inputs(case: Case) -> Iterator[Edit]:
    """Leave out one input of a block; who read it reads the first one that is left."""
    for path, block in blocks(case.model):
        if len(block.inputs) > 1:
            for name in block.inputs:
                yield _drop_input(path, name)


def _drop_input(path: str, name: str) -> Edit:
    def edit(case: Case) -> Case:
        found = resolve(case.model, path)
        if found is None or not isinstance(found[1], Block) or name not in found[1].inputs:
            return case
        index, left = found[1].inputs.index(name), tuple(i for i in found[1].inputs if i != name)
        if not left:
            return case

        def shorten(block: Block, call: Call) -> Block:
            fewer = replace(call, args=without(call.args, index))
            return replace(
                block, nodes=tuple(fewer if n.name == call.name else n for n in block.nodes)
            )

        case = map_calls(case, path, shorten)
        if not path:
            case = replace(
                case, inputs=replace(case.inputs, tensors=without(case.inputs.tensors, index))
            )

        def narrow(block: Block) -> Block:
            return replace(map_values(block, lambda v: left[0] if v == name else v), inputs=left)

        return change_block(path, narrow)(case)

    return edit
