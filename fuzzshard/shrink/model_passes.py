"""Passes over the module tree: fewer modules, aliases and levels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Literal

from msgspec.structs import replace

from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case, TensorSpec
from fuzzshard.case.edit import (
    NOWHERE,
    blocks,
    by_prefix,
    callers,
    map_nodes,
    map_values,
    rename_called,
    rename_paths,
    set_module,
    split,
)
from fuzzshard.case.graph import Alias, Block, Call, Child, Node, join, resolve, walk
from fuzzshard.case.paths import is_within
from fuzzshard.parts.leaf import Leaf
from fuzzshard.parts.leaves import affine
from fuzzshard.shrink.passes import Edit, change_block, put_module, set_block


def hoist(case: Case) -> Iterator[Edit]:
    """Make a block below the root the root."""
    values = inferred(case).input_values
    gradient = any(t.requires_grad for t in case.inputs.tensors)
    for path, block in blocks(case.model):
        if path:
            tensors = (
                TensorSpec(kind="ids", size=v.size)
                if v.ids
                else TensorSpec(size=v.size, requires_grad=gradient)
                for v in values[path]
            )
            yield _hoist(path, block, tuple(tensors))


def _hoist(path: str, block: Block, tensors: tuple[TensorSpec, ...]) -> Edit:
    def rename(reference: str) -> str:
        if is_within(reference, path):
            return reference.removeprefix(path).removeprefix(".")
        return NOWHERE if reference else ""

    def edit(case: Case) -> Case:
        renamed = rename_paths(replace(case, model=block), rename)
        return replace(renamed, inputs=replace(case.inputs, tensors=tensors))

    return edit


def modules(case: Case) -> Iterator[Edit]:
    """Leave out one module, parents first; its callers read its argument instead."""
    for path, _ in walk(case.model):
        if path:
            yield put_module(path, None)


Heirs = Literal["none", "first", "all"]


def inline(case: Case, heirs: Heirs = "none") -> Iterator[Edit]:
    """Move the children and nodes of a block into its parent. Its wrap group goes, or what names
    the block then names its ``heirs`` among the children.
    """
    for path, _ in blocks(case.model):
        if path and len(list(callers(case.model, path))) == 1:
            yield functools.partial(inlined, path=path, heirs=heirs)


def inlined(case: Case, path: str, *, heirs: Heirs = "none") -> Case:
    """Return ``case`` with the block at ``path`` inlined; what named it dangles, or names its
    children.
    """
    found = resolve(case.model, path)
    if found is None or found[0] != path or not isinstance(found[1], Block):
        return case
    parent, name = split(path)
    block = found[1]
    owner = resolve(case.model, parent)
    assert owner is not None
    assert isinstance(owner[1], Block)
    taken = {c.name for c in owner[1].children} - {name}
    names = {c.name: c.name if c.name not in taken else f"{name}_{c.name}" for c in block.children}
    moved = tuple(Child(name=names[c.name], module=c.module) for c in block.children)

    def change(outer: Block) -> Block:
        children = [m for c in outer.children for m in (moved if c.name == name else (c,))]
        calls = [n for n in outer.nodes if isinstance(n, Call) and name in n.modules]
        if not calls:
            calls = [
                Call(name=f"{name}_call", module=name, args=outer.inputs[:1] * len(block.inputs))
            ]
            outer = replace(outer, nodes=(*outer.nodes, *calls))
        outer = replace(outer, children=tuple(children))
        for call in calls:
            outer = _splice(outer, block, call.name, names)
        return outer

    moves = {join(path, old): join(parent, new) for old, new in names.items()} | {path: NOWHERE}
    if heirs != "none" and block.children:
        children = tuple(join(path, c.name) for c in block.children)
        case = _spread(case, path, children if heirs == "all" else children[:1])
    return rename_paths(change_block(parent, change)(case), by_prefix(moves))


def _spread(case: Case, path: str, children: tuple[str, ...]) -> Case:
    """Wrap groups of ``path`` list its children; anything else that names it names the first
    one.
    """
    groups = []
    for group in case.wrap:
        members = (children if member == path else (member,) for member in group.modules)
        groups.append(replace(group, modules=tuple(m for part in members for m in part)))
    case = replace(case, wrap=tuple(groups))
    return rename_paths(case, lambda reference: children[0] if reference == path else reference)


def _splice(outer: Block, inner: Block, name: str, names: dict[str, str]) -> Block:
    at, call = next(
        (i, n) for i, n in enumerate(outer.nodes) if isinstance(n, Call) and n.name == name
    )
    values = dict(zip(inner.inputs, call.args, strict=True))
    values |= {n.name: f"{call.name}_{n.name}" for n in inner.nodes}

    def rename(value: str) -> str:
        node, dot, index = value.partition(".")
        return values[node] + dot + index

    spliced: list[Node] = []
    for node in inner.nodes:
        node = replace(node, name=values[node.name], args=tuple(map(rename, node.args)))
        if isinstance(node, Call):
            node = rename_called(replace(node, grad=node.grad and call.grad), names.__getitem__)
        spliced.append(node)
    results = {f"{call.name}.{i}": rename(v) for i, v in enumerate(inner.outputs)}
    if inner.returns == "tensor":
        results = {call.name: rename(inner.outputs[0])}
    nodes = (*outer.nodes[:at], *spliced, *outer.nodes[at + 1 :])
    return map_values(replace(outer, nodes=nodes), lambda v: results.get(v, v))


def aliases(case: Case) -> Iterator[Edit]:
    """Make an alias a module of its own, or let its callers call the target beside it."""
    for path, module in walk(case.model):
        if isinstance(module, Alias) and (found := resolve(case.model, path)):
            parent, _ = split(path)
            if split(found[0])[0] == parent:
                yield _call_target(path, split(found[0])[1])
            yield put_module(path, found[1])


def _call_target(path: str, target: str) -> Edit:
    parent, name = split(path)

    def change(block: Block) -> Block:
        return map_nodes(block, lambda n: rename_called(n, lambda m: target if m == name else m))

    def edit(case: Case) -> Case:
        return set_module(change_block(parent, change)(case), path, None)

    return edit


def merge_modules(case: Case) -> Iterator[Edit]:
    """Leave out one module; what named or called it names or calls its parent or another one
    beside it.
    """
    for path, _ in walk(case.model):
        parent, name = split(path)
        owner = resolve(case.model, parent)
        if not path or owner is None or not isinstance(owner[1], Block):
            continue
        beside = [
            c.name for c in owner[1].children if not isinstance(c.module, Alias) and c.name != name
        ]
        for other in (parent, *(join(parent, b) for b in beside)):
            yield functools.partial(_merge, path=path, other=other)
        if any(isinstance(n, Call) and name in n.modules for n in owner[1].nodes):
            for called in beside:
                rename = by_prefix({path: join(parent, called)})
                yield functools.partial(_call_other, path=path, name=called, rename=rename)


def _merge(case: Case, path: str, other: str) -> Case:
    return set_module(rename_paths(case, by_prefix({path: other})), path, None)


def _call_other(case: Case, path: str, name: str, rename: Callable[[str], str]) -> Case:
    return _call_target(path, name)(rename_paths(case, rename))


def merge_into_linear(case: Case) -> Iterator[Edit]:
    """Make one Linear of two leaves with parameters, and a freeze of the first is one of its
    bias.
    """
    found = inferred(case)
    leaves = [p for p, m in walk(case.model) if isinstance(m, Leaf) and m.has_parameters]
    pairs = list(itertools.pairwise(leaves))
    for path, other in (*pairs, *((second, first) for first, second in pairs)):
        linear = affine(found.output_values[other][0].size)
        yield functools.partial(_merge_into_linear, path=path, other=other, linear=linear)


def _merge_into_linear(case: Case, path: str, other: str, linear: Leaf) -> Case:
    bias = join(other, "bias")
    freezes = (
        replace(f, target=bias if is_within(f.target, path) else f.target) for f in case.freezes
    )
    return set_module(set_module(replace(case, freezes=tuple(freezes)), other, linear), path, None)


def child_order(case: Case) -> Iterator[Edit]:
    """Exchange two neighbouring children or nodes, or two children that are called so
    too.
    """
    for path, block in blocks(case.model):
        for field in ("children", "nodes"):
            items = getattr(block, field)
            for i in range(len(items) - 1):
                swapped = (*items[:i], items[i + 1], items[i], *items[i + 2 :])
                yield set_block(path, **{field: swapped})
        for first, second in itertools.pairwise(block.children):
            traded = _trade_places(block, first, second)
            yield set_block(path, nodes=traded.nodes, children=traded.children)


def _trade_places(block: Block, first: Child, second: Child) -> Block:
    children = {first: second, second: first}
    names = {first.name: second.name, second.name: first.name}

    def call(node: Node) -> Node:
        return rename_called(node, lambda name: names.get(name, name))

    return replace(
        map_nodes(block, call), children=tuple(children.get(c, c) for c in block.children)
    )
