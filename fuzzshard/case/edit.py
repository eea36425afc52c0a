"""Pure edits of a Case. An edit may leave references dangling; :mod:`fuzzshard.shrink.repair`
mends them.

An edit whose target is not there any more returns its argument, so that edits can be combined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, get_args

from msgspec.structs import replace

from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.graph import (
    Alias,
    Block,
    Call,
    Child,
    Module,
    Node,
    join,
    resolve,
    value_node,
    walk,
)
from fuzzshard.parts.options.wrap_group import When

T = TypeVar("T")

NOWHERE = "?"
"""A path that no module can have; what is renamed to it dangles."""


def split(path: str) -> tuple[str, str]:
    """Return ``("a.b", "c")`` for ``"a.b.c"``, the inverse of :func:`graph.join`."""
    parent, _, name = path.rpartition(".")
    return parent, name


def without(items: tuple[T, ...], index: int) -> tuple[T, ...]:
    """Return ``items`` less the one at ``index``."""
    return items[:index] + items[index + 1 :]


def with_item(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    """Return ``items`` with another one at ``index``."""
    return (*items[:index], item, *items[index + 1 :])


def blocks(root: Block) -> Iterator[tuple[str, Block]]:
    """Yield all blocks with their paths, parents first."""
    for path, module in walk(root):
        if isinstance(module, Block):
            yield path, module


def edit_block(root: Block, path: str, change: Callable[[Block], Block]) -> Block:
    """Return ``root`` with the block at ``path`` changed."""
    if not path:
        return change(root)
    name, _, rest = path.partition(".")
    children = tuple(
        Child(name=c.name, module=edit_block(c.module, rest, change))
        if c.name == name and isinstance(c.module, Block)
        else c
        for c in root.children
    )
    return replace(root, children=children)


def set_module(case: Case, path: str, module: Module | None) -> Case:
    """Return the case with another module at ``path``, or none."""
    parent, name = split(path)

    def change(block: Block) -> Block:
        children = (
            Child(name=c.name, module=module) if c.name == name and module else c
            for c in block.children
            if c.name != name or module
        )
        return replace(block, children=tuple(children))

    return replace(case, model=edit_block(case.model, parent, change))


def map_modules(root: Block, change: Callable[[str, Module], Module], path: str = "") -> Block:
    """Return ``root`` with every leaf and alias below it changed; ``change`` is given paths."""
    children = []
    for child in root.children:
        here = join(path, child.name)
        module = child.module
        module = (
            map_modules(module, change, here)
            if isinstance(module, Block)
            else change(here, module)
        )
        children.append(Child(name=child.name, module=module))
    return replace(root, children=tuple(children))


def map_nodes(block: Block, change: Callable[[Node], Node]) -> Block:
    """Return ``block`` with every node changed."""
    return replace(block, nodes=tuple(change(n) for n in block.nodes))


def put_node(block: Block, node: Node) -> Block:
    """Return ``block`` with ``node`` in place of the one of its name."""
    return map_nodes(block, lambda n: node if n.name == node.name else n)


def rename_called(node: Node, rename: Callable[[str], str]) -> Node:
    """Return a call of other children; a tensor op stays as it is."""
    if not isinstance(node, Call):
        return node
    return replace(
        node, module=rename(node.module), alternatives=tuple(map(rename, node.alternatives))
    )


def without_op(case: Case, index: int) -> Case:
    """Return ``case`` without one op and its expectations; those of later ops move along."""
    expect = (replace(e, op=e.op - (e.op > index)) for e in case.expect if e.op != index)
    return replace(case, schedule=without(case.schedule, index), expect=tuple(expect))


def map_values(block: Block, change: Callable[[str], str]) -> Block:
    """Return ``block`` with every use of a value renamed."""
    changed = map_nodes(block, lambda n: replace(n, args=tuple(map(change, n.args))))
    return replace(changed, outputs=tuple(map(change, block.outputs)))


def bypass(block: Block, name: str, value: str) -> Block:
    """Drops the node ``name``; whoever read it reads ``value``."""
    kept = replace(block, nodes=tuple(n for n in block.nodes if n.name != name))
    return sort_nodes(map_values(kept, lambda v: value if value_node(v) == name else v))


def sort_nodes(block: Block) -> Block:
    """Return the nodes in the first topological order that keeps their order where it can."""
    waiting = list(block.nodes)
    known = set(block.inputs)
    ordered: list[Node] = []
    while ready := [n for n in waiting if all(value_node(a) in known for a in n.args)]:
        ordered.append(ready[0])
        known.add(ready[0].name)
        waiting.remove(ready[0])
    return replace(block, nodes=(*ordered, *waiting))


def callers(root: Block, path: str) -> Iterator[tuple[str, str]]:
    """Yield every (block, name) under which a block may call the module at ``path``, aliases
    included.
    """
    for here, module in walk(root):
        if here and (here == path or isinstance(module, Alias)):
            found = resolve(root, here)
            if found and found[0] == path:
                yield split(here)


def map_calls(case: Case, path: str, change: Callable[[Block, Call], Block]) -> Case:
    """Changes every block that calls the module at ``path``, once for each call."""
    model = case.model
    for owner, name in callers(case.model, path):

        def visit(block: Block, name: str = name) -> Block:
            for node in block.nodes:
                if isinstance(node, Call) and name in node.modules:
                    block = change(block, node)
            return block

        model = edit_block(model, owner, visit)
    return replace(case, model=model)


def rename_paths(case: Case, rename: Callable[[str], str]) -> Case:
    """Applies ``rename`` to every reference to a module or parameter; the modules themselves
    stay.
    """

    def group(group: WrapGroup) -> WrapGroup:
        lists = {when: map(rename, group.prefetched(when)) for when in get_args(When)}
        return replace(group.prefetching(lists), modules=tuple(map(rename, group.modules)))

    def module(_: str, module: Module) -> Module:
        return Alias(target=rename(module.target)) if isinstance(module, Alias) else module

    return replace(
        case,
        model=map_modules(case.model, module),
        wrap=tuple(map(group, case.wrap)),
        ties=tuple(
            replace(t, parameter=rename(t.parameter), source=rename(t.source)) for t in case.ties
        ),
        checkpoints=tuple(replace(c, module=rename(c.module)) for c in case.checkpoints),
        freezes=tuple(replace(f, target=rename(f.target)) for f in case.freezes),
        dtypes=tuple(replace(d, target=rename(d.target)) for d in case.dtypes),
        tensor_parallel=tuple(replace(t, module=rename(t.module)) for t in case.tensor_parallel),
        ignored=tuple(map(rename, case.ignored)),
        optimizer=case.optimizer.leaving_out(map(rename, case.optimizer.exclude)),
        schedule=tuple(
            replace(op, target=rename(op.target)) if "target" in op.__struct_fields__ else op
            for op in case.schedule
        ),
    )


def by_prefix(moves: Mapping[str, str]) -> Callable[[str], str]:
    """Return a renaming that moves whole subtrees: ``{"a.b": "c"}`` turns ``"a.b.weight"`` into
    ``"c.weight"``.
    """

    def rename(path: str) -> str:
        prefix, rest = path, ""
        while prefix and prefix not in moves:
            prefix, name = split(prefix)
            rest = f".{name}{rest}"
        if prefix not in moves:
            return path
        return (moves[prefix] + rest).removeprefix(".")

    return rename
