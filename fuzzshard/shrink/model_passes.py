"""Passes over the module tree and its DAGs: fewer modules, nodes, values and levels."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fuzzshard.case.case import Case, TensorSpec
from fuzzshard.case.edit import (
    NOWHERE,
    by_prefix,
    bypass,
    callers,
    edit_block,
    map_calls,
    map_values,
    rename_paths,
    set_module,
    split,
    without,
)
from fuzzshard.case.facts import facts, is_within
from fuzzshard.case.graph import Alias, Block, Call, Child, Node, join, resolve, value_node, walk
from fuzzshard.case.schedule import Forward
from fuzzshard.shrink.passes import Edit


def _blocks(case: Case) -> Iterator[tuple[str, Block]]:
    for path, module in walk(case.model):
        if isinstance(module, Block):
            yield path, module


def hoist(case: Case) -> Iterator[Edit]:
    """A block below the root becomes the root."""
    values = facts(case).input_values
    for path, block in _blocks(case):
        if path:
            tensors = (
                TensorSpec(kind="ids" if v.ids else "float", size=v.size, requires_grad=case.inputs.tensors[0].requires_grad and not v.ids)
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
    """Without one module, parents first; its callers read its argument in place of its result."""
    for path, _ in walk(case.model):
        if path:
            yield lambda c, p=path: set_module(c, p, None)  # type: ignore[misc]


def nodes(case: Case) -> Iterator[Edit]:
    """Without one node: its readers read its i-th argument. A module it called stays, uncalled."""
    for position in range(max((len(n.args) for _, b in _blocks(case) for n in b.nodes), default=0)):
        for path, block in _blocks(case):
            for node in block.nodes:
                if position < len(node.args):
                    yield _bypass(path, node, position)


def _bypass(path: str, node: Node, position: int) -> Edit:
    def change(block: Block) -> Block:
        present = next((n for n in block.nodes if n.name == node.name), None)
        if present is None or position >= len(present.args):
            return block
        return bypass(block, node.name, present.args[position])

    return lambda case: replace(case, model=edit_block(case.model, path, change))


def arguments(case: Case) -> Iterator[Edit]:
    """A tensor op without one of its arguments."""
    for path, block in _blocks(case):
        for node in block.nodes:
            if not isinstance(node, Call) and len(node.args) > 1:
                for index in range(len(node.args)):
                    fewer = replace(node, args=without(node.args, index))
                    nodes = tuple(fewer if n.name == node.name else n for n in block.nodes)
                    yield _set_nodes(path, nodes)


def rewire(case: Case) -> Iterator[Edit]:
    """A node or output reads an input of the block, or an argument of what it reads now."""
    for path, block in _blocks(case):
        above = {n.name: n.args for n in block.nodes}
        for index, node in enumerate(block.nodes):
            for position, arg in enumerate(node.args):
                for value in dict.fromkeys((block.inputs[:1]) + above.get(value_node(arg), ())):
                    if value != arg:
                        args = (*node.args[:position], value, *node.args[position + 1 :])
                        nodes = (*block.nodes[:index], replace(node, args=args), *block.nodes[index + 1 :])
                        yield _set_nodes(path, nodes)


def _set_nodes(path: str, nodes: tuple[Node, ...]) -> Edit:
    return lambda case: replace(case, model=edit_block(case.model, path, lambda b: replace(b, nodes=nodes)))


def outputs(case: Case) -> Iterator[Edit]:
    """Without one output of a block; a single one is returned as a tensor."""
    for path, block in _blocks(case):
        for index in range(len(block.outputs)):
            if len(block.outputs) > 1:
                yield _drop_output(path, index)
        if block.returns != "tensor" and len(block.outputs) == 1:
            yield lambda c, p=path: _return_tensor(c, p)  # type: ignore[misc]


def _drop_output(path: str, index: int) -> Edit:
    def shift(value: str, node: str) -> str:
        if value_node(value) != node:
            return value
        number = int(value.split(".")[1])
        return f"{node}.{max(number - (number >= index), 0)}"

    def edit(case: Case) -> Case:
        found = resolve(case.model, path)
        if found is None or not isinstance(found[1], Block) or len(found[1].outputs) < 2:
            return case
        case = map_calls(case, path, lambda b, call: map_values(b, lambda v: shift(v, call.name)))
        schedule = []
        for op in case.schedule:
            if isinstance(op, Forward) and op.target == path and op.outputs:
                op = replace(op, outputs=tuple(i - (i > index) for i in op.outputs if i != index) or None)
            schedule.append(op)
        model = edit_block(case.model, path, lambda b: replace(b, outputs=without(b.outputs, index)))
        case = replace(case, model=model, schedule=tuple(schedule))
        return _return_tensor(case, path) if len(found[1].outputs) == 2 else case

    return edit


def _return_tensor(case: Case, path: str) -> Case:
    case = map_calls(
        case, path, lambda b, call: map_values(b, lambda v: call.name if value_node(v) == call.name else v)
    )
    return replace(case, model=edit_block(case.model, path, lambda b: replace(b, returns="tensor")))


def inputs(case: Case) -> Iterator[Edit]:
    """Without one input of a block; who read it reads the first one that is left."""
    for path, block in _blocks(case):
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
            return replace(block, nodes=tuple(fewer if n.name == call.name else n for n in block.nodes))

        case = map_calls(case, path, shorten)
        if not path:
            case = replace(case, inputs=replace(case.inputs, tensors=without(case.inputs.tensors, index)))
        change = edit_block(
            case.model, path, lambda b: replace(map_values(b, lambda v: left[0] if v == name else v), inputs=left)
        )
        return replace(case, model=change)

    return edit


def inline(case: Case) -> Iterator[Edit]:
    """The children and nodes of a block move into its parent."""
    for path, _ in _blocks(case):
        if path and len(list(callers(case.model, path))) == 1:
            yield lambda c, p=path: inlined(c, p)  # type: ignore[misc]


def inlined(case: Case, path: str) -> Case:
    """``case`` with the block at ``path`` inlined; a wrap group of its own is dropped."""
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
        outer = replace(outer, children=tuple(children))
        for call in [n for n in outer.nodes if isinstance(n, Call) and n.module == name]:
            outer = _splice(outer, block, call, names)
        return outer

    moves = {join(path, old): join(parent, new) for old, new in names.items()} | {path: NOWHERE}
    return rename_paths(replace(case, model=edit_block(case.model, parent, change)), by_prefix(moves))


def _splice(outer: Block, inner: Block, call: Call, names: dict[str, str]) -> Block:
    values = dict(zip(inner.inputs, call.args, strict=True))
    values |= {n.name: f"{call.name}_{n.name}" for n in inner.nodes}

    def rename(value: str) -> str:
        node, dot, index = value.partition(".")
        return values[node] + dot + index

    spliced: list[Node] = []
    for node in inner.nodes:
        node = replace(node, name=values[node.name], args=tuple(map(rename, node.args)))
        if isinstance(node, Call):
            node = replace(node, module=names[node.module], grad=node.grad and call.grad)
        spliced.append(node)
    results = {f"{call.name}.{i}": rename(v) for i, v in enumerate(inner.outputs)}
    if inner.returns == "tensor":
        results = {call.name: rename(inner.outputs[0])}
    at = next(i for i, n in enumerate(outer.nodes) if n.name == call.name)
    nodes = (*outer.nodes[:at], *spliced, *outer.nodes[at + 1 :])
    return map_values(replace(outer, nodes=nodes), lambda v: results.get(v, v))


def aliases(case: Case) -> Iterator[Edit]:
    """An alias becomes a module of its own, or its callers call the target beside it."""
    for path, module in walk(case.model):
        if isinstance(module, Alias) and (found := resolve(case.model, path)):
            parent, name = split(path)
            if split(found[0])[0] == parent:
                yield _call_target(path, split(found[0])[1])
            copy = found[1]
            yield lambda c, p=path, m=copy: set_module(c, p, m)  # type: ignore[misc]


def _call_target(path: str, target: str) -> Edit:
    parent, name = split(path)

    def change(block: Block) -> Block:
        nodes = (
            replace(n, module=target) if isinstance(n, Call) and n.module == name else n for n in block.nodes
        )
        return replace(block, nodes=tuple(nodes))

    def edit(case: Case) -> Case:
        return set_module(replace(case, model=edit_block(case.model, parent, change)), path, None)

    return edit
