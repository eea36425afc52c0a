"""Passes that replace a leaf or an op by a simpler one, and that name things canonically."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec.structs import asdict, replace

from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.order import canonical_children, canonical_values
from fuzzshard.case.case import Case
from fuzzshard.case.edit import (
    by_prefix,
    bypass,
    edit_block,
    map_modules,
    map_nodes,
    map_values,
    put_node,
    rename_called,
    rename_paths,
    set_module,
    split,
)
from fuzzshard.case.graph import Block, Call, Child, Module, Node, join, resolve, value_node, walk
from fuzzshard.parts.leaf import Leaf, Value
from fuzzshard.parts.leaves import SIMPLEST, SIMPLEST_TRAINED, affine
from fuzzshard.shrink.passes import Edit, change_block, put_module, set_block

Simplify = Callable[[Leaf, int, int], Leaf]
"""A leaf, called with one width and returning another, as a simpler one."""


def _leaves(simplify: Simplify) -> Callable[[Case], Iterator[Edit]]:
    """Edits of one leaf each, together with those that parameters are tied to."""

    def edits(case: Case) -> Iterator[Edit]:
        found = inferred(case)
        simpler: dict[str, Leaf] = {}
        for path, leaf in walk(case.model):
            if isinstance(leaf, Leaf):
                new = simplify(leaf, found.width(path), found.output_values[path][0].size)
                if new.complexity < leaf.complexity or (type(new) is type(leaf) and new != leaf):
                    simpler[path] = new
        for path in simpler:
            yield functools.partial(
                _put_leaves, leaves={p: simpler[p] for p in _tied(case, path) if p in simpler}
            )

    return edits


def _put_leaves(case: Case, leaves: Mapping[str, Leaf]) -> Case:
    for path, leaf in leaves.items():
        case = set_module(case, path, leaf)
    return case


def _tied(case: Case, path: str) -> set[str]:
    group = {path}
    for tie in case.ties:
        ends = {split(tie.parameter)[0], split(tie.source)[0]}
        group |= ends if path in ends else set()
    return group


def _to(simpler: Callable[[int], Leaf]) -> Simplify:
    """A leaf with parameters as another kind of leaf, which is given the width it returns."""

    def simplify(leaf: Leaf, width: int, out: int) -> Leaf:
        return leaf if "ids" in leaf.takes or not leaf.has_parameters else simpler(out)

    return simplify


to_activation = _leaves(lambda leaf, *_: leaf if "ids" in leaf.takes else SIMPLEST)
to_linear = _leaves(_to(lambda out: affine(out, bias=False)))
to_biased_linear = _leaves(_to(affine))
to_parameter = _leaves(_to(lambda out: SIMPLEST_TRAINED))
plain = _leaves(lambda leaf, *_: leaf.simpler())


def shorter(case: Case) -> Iterator[Edit]:
    """Take one part from the list of a leaf that has one."""
    for path, leaf in walk(case.model):
        fields = asdict(leaf) if isinstance(leaf, Leaf) else {}
        lists = {name: each for name, each in fields.items() if isinstance(each, tuple)}
        for name, parts in lists.items():
            for i in range(len(parts) if len(parts) > 1 else 0):
                yield put_module(path, replace(leaf, **{name: (*parts[:i], *parts[i + 1 :])}))


def empty_blocks(case: Case) -> Iterator[Edit]:
    """Make a block without children a leaf without parameters."""
    for path, module in walk(case.model):
        if path and isinstance(module, Block) and not module.children:
            yield put_module(path, SIMPLEST)


def floats(case: Case) -> Iterator[Edit]:
    """Make ids float inputs; embeddings that read them become Linears, or are not called any
    more.
    """
    found = inferred(case)
    dims = [
        found.output_values[path][0].size
        for path, leaf in found.leaves.items()
        if "ids" in leaf.takes
    ]
    if any(t.kind == "ids" for t in case.inputs.tensors):
        width = min(dims, default=1)
        yield lambda case: _linears_for_embeddings(_float_inputs(case, width))
        yield functools.partial(_floats_past_embeddings, width=width)
    elif dims:
        yield _linears_for_embeddings


def _float_inputs(case: Case, width: int) -> Case:
    tensors = tuple(
        replace(t, kind="float", size=width) if t.kind == "ids" else t for t in case.inputs.tensors
    )
    return replace(case, inputs=replace(case.inputs, tensors=tensors))


def _linears_for_embeddings(case: Case) -> Case:
    def change(_: str, module: Module) -> Module:
        if not isinstance(module, Leaf) or "ids" not in module.takes:
            return module
        return affine(module.result(Value(0)).size)

    return replace(case, model=map_modules(case.model, change))


def _floats_past_embeddings(case: Case, width: int) -> Case:
    model = case.model
    for path, module in walk(case.model):
        for node in module.nodes if isinstance(module, Block) else ():
            if isinstance(node, Call):
                called = resolve(case.model, join(path, node.module))
                if called and isinstance(called[1], Leaf) and "ids" in called[1].takes:
                    skip = functools.partial(bypass, name=node.name, value=node.args[0])
                    model = edit_block(model, path, skip)
    return _float_inputs(replace(case, model=model), width)


def simpler_nodes(case: Case) -> Iterator[Edit]:
    """Put ``add`` for other joins, ``relu`` for ``tanh``, calls with gradients."""
    for path, module in walk(case.model):
        for node in module.nodes if isinstance(module, Block) else ():
            if isinstance(node, Call):
                simpler: Node = replace(node, grad=True)
                for name in node.modules if node.alternatives else ():
                    yield _change_node(path, replace(node, module=name, alternatives=()))
            else:
                simpler = replace(node, op=_SIMPLER_OPS.get(node.op, node.op), head_dim=1)
            if simpler != node:
                yield _change_node(path, simpler)
        if isinstance(module, Block) and module.returns not in ("tensor", "tuple"):
            yield set_block(path, returns="tuple")
        if isinstance(module, Block) and module.passing != "positional":
            yield set_block(path, passing="positional")
        if isinstance(module, Block) and module.has_method:
            yield set_block(path, method="forward")


_SIMPLER_OPS: Mapping[str, Any] = {
    "tanh": "relu",
    "mul": "add",
    "concat": "add",
    "iadd": "add",
    "attend": "add",
}


def _change_node(path: str, node: Node) -> Edit:
    return change_block(path, lambda block: put_node(block, node))


def names(case: Case) -> Iterator[Edit]:
    """Give canonical names: ``linear0`` for modules, ``h0`` for values, ``x0`` for inputs."""
    yield _name_values
    yield _name_modules


def _name_values(case: Case) -> Case:
    root = case.model
    for path, module in walk(case.model):
        if isinstance(module, Block):
            root = edit_block(root, path, _name_block_values)
    return replace(case, model=root)


def _name_block_values(block: Block) -> Block:
    new = canonical_values(block)
    block = map_values(block, lambda v: new.get(value_node(v), v) + v[len(value_node(v)) :])
    nodes = tuple(replace(n, name=new[n.name]) for n in block.nodes)
    return replace(block, nodes=nodes, inputs=tuple(new[i] for i in block.inputs))


def _name_modules(case: Case) -> Case:
    moves: dict[str, str] = {}

    def visit(block: Block, old: str, new: str) -> Block:
        names = canonical_children(block)
        children = []
        for child in block.children:
            here, there = join(old, child.name), join(new, names[child.name])
            moves[here] = there
            module = child.module
            module = visit(module, here, there) if isinstance(module, Block) else module
            children.append(Child(name=names[child.name], module=module))
        renamed = map_nodes(block, lambda n: rename_called(n, names.__getitem__))
        return replace(renamed, children=tuple(children))

    model = visit(case.model, "", "")
    return rename_paths(replace(case, model=model), by_prefix(moves))
