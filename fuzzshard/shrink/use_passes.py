"""Passes towards a model in which every module is called and every value read: modules in
sequence.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from msgspec.structs import replace

from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.analysis.oddities import unread
from fuzzshard.case.case import Case
from fuzzshard.case.edit import blocks, bypass, map_nodes, map_values, sort_nodes
from fuzzshard.case.graph import Alias, Block, Call, Node, join, resolve, value_node
from fuzzshard.shrink.dag_passes import drop_output
from fuzzshard.shrink.passes import Edit, change_block


def children_in_sequence(case: Case) -> Iterator[Edit]:
    """Let a block call its children one after another, in registration order, and do nothing
    else.
    """
    found = inferred(case)
    for path, block in blocks(case.model):
        calls = [_call_of(case, found, path, block, c.name) for c in block.children]
        yield _chain(case, found, path, block, [c for c in calls if c])


def calls_in_sequence(case: Case) -> Iterator[Edit]:
    """Let a block make its calls one after another, then those of children not called, and nothing
    else.
    """
    found = inferred(case)
    for path, block in blocks(case.model):
        present = [n for n in block.nodes if isinstance(n, Call)]
        yield _chain(
            case, found, path, block, [*present, *_missing_calls(case, found, path, block)]
        )


def _chain(case: Case, found: Inferred, path: str, block: Block, calls: list[Call]) -> Edit:
    value = next(iter(_float_inputs(found, path, block)), "")
    nodes: list[Node] = []
    for call in calls:
        takes_ids = _takes_ids(case, found, join(path, call.module))
        nodes.append(call if takes_ids or not value else _reading(call, value))
        value = _result(case, path, call)

    def change(block: Block) -> Block:
        return replace(block, nodes=tuple(nodes), outputs=(value,) * len(block.outputs))

    return change_block(path, change)


def call_unused(case: Case) -> Iterator[Edit]:
    """Call a child that is never called last, or first."""
    found = inferred(case)
    for path, block in blocks(case.model):
        for call in _missing_calls(case, found, path, block):
            value = _result(case, path, call)
            for calling in (_called_last, _called_first):
                yield change_block(path, functools.partial(calling, call=call, value=value))


def _called_last(block: Block, call: Call, value: str) -> Block:
    nodes = (*block.nodes, _reading(call, block.outputs[0]))
    return replace(block, nodes=nodes, outputs=(value, *block.outputs[1:]))


def _called_first(block: Block, call: Call, value: str) -> Block:
    (first, *_) = call.args
    changed = map_values(block, lambda v: value if v == first else v)
    return replace(changed, nodes=(call, *changed.nodes))


def _missing_calls(case: Case, found: Inferred, path: str, block: Block) -> Iterator[Call]:
    """Calls of the children that no forward of the root calls, all on the first float input."""
    for child in block.children:
        uncalled = (
            not isinstance(child.module, Alias) and join(path, child.name) not in found.called
        )
        if uncalled and (call := _call_of(case, found, path, block, child.name)):
            yield call


def _call_of(case: Case, found: Inferred, path: str, block: Block, name: str) -> Call | None:
    """Return the first call of a child, or a new one on the first float input, if there is one and
    it fits.
    """
    for node in block.nodes:
        if isinstance(node, Call) and node.module == name:
            return node
    floats = _float_inputs(found, path, block)
    if (
        not floats
        or _takes_ids(case, found, join(path, name))
        or isinstance(block.child(name), Alias)
    ):
        return None
    arity = len(found.input_values[join(path, name)])
    taken = {*block.inputs, *(n.name for n in block.nodes)}
    stem = f"{name}_out"
    fresh = next(n for i in range(len(taken) + 1) if (n := f"{stem}{i}") not in taken)
    return Call(name=fresh, module=name, args=(floats[0],) * arity)


def join_in_sequence(case: Case) -> Iterator[Edit]:
    """Compute, of two values that an op joins or a block returns, one from the other; it alone
    is left.
    """
    for path, block in blocks(case.model):
        for node in block.nodes:
            if not isinstance(node, Call):
                for first, second in itertools.permutations(dict.fromkeys(node.args), 2):
                    yield _in_sequence(path, first, second, bypassed=node.name)
        for first, second in itertools.permutations(dict.fromkeys(block.outputs), 2):
            yield _return_second(
                path, block.outputs.index(first), _in_sequence(path, first, second)
            )


def _return_second(path: str, first: int, in_sequence: Edit) -> Edit:
    return lambda case: in_sequence(drop_output(path, first)(case))


def read_unread(case: Case) -> Iterator[Edit]:
    """Compute a value that nothing reads from the output, whose place it takes, or the output from
    it.
    """
    for path, block in blocks(case.model):
        names = {n.name for n in block.nodes}
        for name in unread(block):
            if name in names:
                yield _in_sequence(path, block.outputs[0], name)
                yield _in_sequence(path, name, block.outputs[0])


def _in_sequence(path: str, first: str, second: str, bypassed: str = "") -> Edit:
    """Return what ``second`` is computed from reads ``first``; ``second`` takes the place of
    ``bypassed``, or is the output.
    """

    def change(block: Block) -> Block:
        nodes = {n.name: n for n in block.nodes}
        start = value_node(second)
        while start in nodes and value_node(nodes[start].args[0]) in nodes:
            start = value_node(nodes[start].args[0])
        if bypassed:
            block = bypass(block, bypassed, second)
        else:
            block = replace(block, outputs=(second, *block.outputs[1:]))
        return sort_nodes(
            map_nodes(
                block, lambda n: replace(n, args=(first, *n.args[1:])) if n.name == start else n
            )
        )

    return change_block(path, change)


def _reading(call: Call, value: str) -> Call:
    return replace(call, args=(value,) * len(call.args))


def _result(case: Case, path: str, call: Call) -> str:
    target = resolve(case.model, join(path, call.module))
    several = target is not None and isinstance(target[1], Block) and target[1].returns != "tensor"
    return f"{call.name}.0" if several else call.name


def _takes_ids(case: Case, found: Inferred, path: str) -> bool:
    target = resolve(case.model, path)
    return target is not None and any(v.ids for v in found.input_values[target[0]])


def _float_inputs(found: Inferred, path: str, block: Block) -> list[str]:
    return [n for n, v in zip(block.inputs, found.input_values[path], strict=True) if not v.ids]
