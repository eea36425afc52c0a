"""Mends a model whose children are gone: their second names go too, and their calls give way to
values.
"""

from __future__ import annotations

import functools

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.edit import bypass, edit_block, put_node, set_module
from fuzzshard.case.graph import Alias, Block, Call, join, resolve, value_node, walk
from fuzzshard.case.paths import is_within


def without_dangling_aliases(case: Case) -> Case:
    """Without the second names of modules that are gone, or that have them within."""
    for path, module in walk(case.model):
        if isinstance(module, Alias):
            found = resolve(case.model, path)
            if found is None or is_within(path, found[0]):
                return without_dangling_aliases(set_module(case, path, None))
    return case


def without_dangling_calls(case: Case) -> Block:
    """Calls of children that are gone give way to their first float argument, or to another
    value.
    """
    ids = _id_values(case)
    root = case.model
    for path, module in walk(case.model):
        if isinstance(module, Block):
            for node in module.nodes:
                if not isinstance(node, Call):
                    continue
                there = [name for name in node.modules if module.child(name) is not None]
                if not there:
                    skip = functools.partial(_skip, call=node, ids=ids.get(path, set()))
                    root = edit_block(root, path, skip)
                elif len(there) < len(node.modules):
                    fewer = replace(node, module=there[0], alternatives=tuple(there[1:]))
                    root = edit_block(root, path, functools.partial(put_node, node=fewer))
    return root


def _skip(block: Block, call: Call, ids: set[str]) -> Block:
    node = next(n for n in block.nodes if n.name == call.name)
    later = {node.name}
    for other in block.nodes:
        if any(value_node(a) in later for a in other.args):
            later.add(other.name)
    read = [v for n in block.nodes for v in n.args] + list(block.outputs)
    known = [*node.args, *block.inputs, *(v for v in read if v not in block.inputs)]
    choice = next((v for v in known if v not in ids and value_node(v) not in later), None)
    return bypass(block, node.name, choice) if choice else block


def _id_values(case: Case) -> dict[str, set[str]]:
    """The inputs of each block that hold ids."""
    found: dict[str, set[str]] = {}

    def visit(path: str, block: Block, ids: set[str]) -> None:
        if path in found:
            return
        found[path] = ids
        for node in block.nodes:
            target = (
                resolve(case.model, join(path, node.module)) if isinstance(node, Call) else None
            )
            if target and isinstance(target[1], Block):
                inner = zip(target[1].inputs, node.args, strict=False)
                passed = {name for name, arg in inner if arg in ids}
                visit(*target, passed)  # type: ignore[arg-type]

    tensors = zip(case.model.inputs, case.inputs.tensors, strict=False)
    visit("", case.model, {name for name, tensor in tensors if tensor.kind == "ids"})
    return found
