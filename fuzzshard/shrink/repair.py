"""Mends a Case after an edit: drops what names nothing any more and makes widths fit again.

Passes stay simple because of it: they remove a module or an op and let the rest follow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from fuzzshard.analysis.batches import known_items
from fuzzshard.analysis.checker import Checker
from fuzzshard.analysis.groups import wrapped_modules
from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case, Freeze, Tie
from fuzzshard.case.dims import get_dims, set_dims
from fuzzshard.case.edit import bypass, edit_block, map_modules, map_nodes, put_node, set_module
from fuzzshard.case.graph import (
    Alias,
    Block,
    Call,
    Module,
    Node,
    TensorOp,
    join,
    resolve,
    value_node,
    walk,
)
from fuzzshard.case.paths import is_within
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaf import Leaf, Value
from fuzzshard.parts.op import Op


def repaired(case: Case) -> Case | None:
    """Return the valid case nearest to ``case`` that has parameters, or None when there is none at
    hand.
    """
    mended = _without_dangling(case)
    for candidate in (mended, *_with_equal_widths(mended)):
        try:
            found = inferred(candidate)
            whole = _with_ops_that_may_come(candidate, found)
            validate(whole)
        except InvalidCase:
            continue
        return whole if found.parameters else None
    return None


def _with_ops_that_may_come(case: Case, found: Inferred) -> Case:
    """``case`` without the ops that may not come where they do, and with the reshards that it
    lacks.
    """
    at = Checker(case, found)
    places: dict[int, int] = {}
    for index, op in enumerate(case.schedule):
        if any(at.accepts(form) for form in _forms(op, case, found)):
            places[index] = len(at.ops) - 1
    expect = (replace(e, op=places[e.op]) for e in case.expect if e.op in places)
    case = replace(case, schedule=tuple(at.ops), expect=tuple(expect))
    return replace(case, inputs=replace(case.inputs, rank_batches=known_items(case)))


def _forms(op: Op, case: Case, found: Inferred) -> Iterator[Op]:
    """An op, and what it may become where what it names is gone."""
    yield op
    if op.rebuilds:  # on all ranks that there are, of as many axes
        ranks = case.mesh.data_size
        axes = [math.gcd(size, ranks) for size in op.rebuilds[:-1]]
        yield replace(op, mesh=(*axes, ranks // math.prod(axes)))
    if "outputs" in op.__struct_fields__:
        yield replace(op, outputs=None)
    if op.call:
        yield replace(op, target="", outputs=None)
    elif op.target and not op.below:
        yield replace(op, target=_nearest(op.target, [*found.parameters]))


def _with_equal_widths(case: Case) -> Iterator[Case]:
    """Every width the same, the smallest of the present ones first; then without concatenation
    too.
    """
    dims = get_dims(case)
    widths = sorted({size for (_, field), size in dims.items() if field != "vocab"})
    for width in widths:
        equal = set_dims(case, {key: width for key in dims if key[1] != "vocab"})

        def fit(_: str, module: Module, width: int = width) -> Module:
            if not isinstance(module, Leaf):
                return module
            value = module.example(Value(width))
            return module.simpler() if any(module.misfits("", value, case.inputs.seq)) else module

        equal = replace(equal, model=map_modules(equal.model, fit))
        yield equal
        yield replace(equal, model=_without_concat(equal.model))


def _without_concat(root: Block) -> Block:
    def node(node: Node) -> Node:
        return (
            replace(node, op="add") if isinstance(node, TensorOp) and node.op == "concat" else node
        )

    for path, module in walk(root):
        if isinstance(module, Block):
            root = edit_block(root, path, lambda block: map_nodes(block, node))
    return root


def _without_dangling(case: Case) -> Case:
    case = _without_dangling_aliases(case)
    case = replace(case, model=_without_dangling_calls(case))
    modules = {path: module for path, module in walk(case.model) if not isinstance(module, Alias)}
    fqns = [
        join(path, name)
        for path, module in modules.items()
        if isinstance(module, Leaf)
        for name in module.parameters(1)
    ]
    ties = tuple(dict.fromkeys(t for t in (_mend_tie(t, fqns) for t in case.ties) if t))
    tied = {t.parameter for t in ties}
    own = [f for f in fqns if f not in tied]
    freezes = (
        Freeze(target=_nearest(f.target, own), after_wrap=f.after_wrap) for f in case.freezes
    )
    case = replace(
        case,
        ties=ties,
        freezes=tuple(dict.fromkeys(f for f in freezes if _has_parameters(f.target, own))),
        checkpoints=tuple(c for c in case.checkpoints if c.module in modules),
    )
    return _mend_options(_mend_wrap(case, modules), modules, own)


def _without_dangling_aliases(case: Case) -> Case:
    """Without the second names of modules that are gone, or that have them within."""
    for path, module in walk(case.model):
        if isinstance(module, Alias):
            found = resolve(case.model, path)
            if found is None or is_within(path, found[0]):
                return _without_dangling_aliases(set_module(case, path, None))
    return case


def _without_dangling_calls(case: Case) -> Block:
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
    """Return the inputs of each block that hold ids."""
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


def _nearest(target: str, fqns: list[str]) -> str:
    """``target``, or the first parameter of the module that had it."""
    module = target.rpartition(".")[0]
    if _has_parameters(target, fqns) or not module:
        return target
    return next((f for f in fqns if is_within(f, module)), target)


def _has_parameters(target: str, fqns: list[str]) -> bool:
    return any(is_within(f, target) for f in fqns)


def _mend_tie(tie: Tie, fqns: list[str]) -> Tie | None:
    parameter, source = _nearest(tie.parameter, fqns), _nearest(tie.source, fqns)
    if parameter not in fqns or source not in fqns or parameter == source:
        return None
    if fqns.index(parameter) < fqns.index(source):
        parameter, source = source, parameter
    return Tie(parameter=parameter, source=source)


def _mend_wrap(case: Case, modules: Mapping[str, Module]) -> Case:
    seen: set[str] = set()
    groups = []
    for group in case.wrap:
        members = tuple(m for m in dict.fromkeys(group.modules) if m in modules and m not in seen)
        seen.update(members)
        if members:
            groups.append(replace(group, modules=members))
    return replace(case, wrap=tuple(groups))


def _mend_options(case: Case, modules: Mapping[str, Module], fqns: list[str]) -> Case:
    """Drops items of plans that name nothing any more."""
    wrapped = wrapped_modules(case)
    groups = (group.mended(case.mesh.shard, wrapped) for group in case.wrap)
    plan = (
        tuple(p for p in case.tensor_parallel if p.module in modules) if case.mesh.tensor else ()
    )
    mesh = case.mesh if plan else replace(case.mesh, tensor=None)
    left_out = [path for path in case.optimizer.exclude if _has_parameters(path, fqns)]
    return replace(
        case,
        mesh=mesh,
        wrap=tuple(groups),
        tensor_parallel=plan,
        dtypes=tuple(d for d in case.dtypes if _has_parameters(d.target, fqns)),
        ignored=tuple(path for path in case.ignored if _has_parameters(path, fqns)),
        optimizer=case.optimizer.leaving_out(left_out),
        expect=tuple(e for e in case.expect if e.engine in case.engines),
    )
