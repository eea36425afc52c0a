"""Which modules return a tensor as it is, and which outputs are changed in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block, Call, Module, TensorOp, join, resolve, value_node
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.op import Reasons

Place = tuple[str, str]
"""A value: the path of its block, and its name in there."""


def changed_outputs(case: Case) -> frozenset[str]:
    """Return the modules with an output that ``iadd`` or a loss may change on some path."""
    modules = inferred(case).modules
    by_iadd = (
        (path, node.args[0])
        for path, block in modules.items()
        for node in (block.nodes if isinstance(block, Block) else ())
        if isinstance(node, TensorOp) and node.op == "iadd"
    )
    changes = LOSSES[case.loss].changes_outputs
    targets = {op.call.target for op in case.schedule if op.call} if changes else frozenset()
    by_loss = (place for path in targets for place in _outputs(case, path))
    return returned_by(case, [*by_iadd, *by_loss]).union(targets)


def loss_misfits(case: Case, target: str) -> Reasons:
    """Yield why a loss may not change the outputs of ``target`` in place, if it does.

    No backward may need their old values, and no two may be one tensor, which would be changed
    twice: they are new tensors, which nobody else reads. Leaves without parameters may return
    their argument, and modules that compute with DTensors return views of these.
    """
    if not LOSSES[case.loss].changes_outputs:
        return
    found = inferred(case)
    names, places = _same_tensors(case, _outputs(case, target))
    leaves = [leaf for n in sorted(names | {target}) if (leaf := found.leaves.get(n))]
    kept = [
        *(value for path, value in sorted(places) if _is_needed(found.modules[path], value)),
        *(each.noun for each in leaves if not each.has_parameters or each.saves_result),
        *("a module that computes with DTensors" for _ in case.tensor_parallel),
    ]
    if kept:
        yield (
            f"the loss {case.loss!r} changes what {target!r} returns in place, and the result of "
            f"{kept[0]} may be needed as it was",
            "take another loss",
        )


def _outputs(case: Case, path: str) -> list[Place]:
    """Return what a block returns; nothing of a leaf, whose result has no name there."""
    module = inferred(case).modules[path]
    return [(path, value) for value in module.outputs] if isinstance(module, Block) else []


def _is_needed(block: Module, value: str) -> bool:
    """Return whether a value of a block is not new, or is read more than once."""
    assert isinstance(block, Block)
    if value in block.inputs:
        return True
    node = next(node for node in block.nodes if node.name == value_node(value))
    alone = isinstance(node, Call) or (
        node.op in ("add", "mul", "concat", "attend") and len(node.args) > 1
    )
    reads = Counter(block.outputs) + Counter(arg for each in block.nodes for arg in each.args)
    return not alone or reads[value] > 1


def returned_by(case: Case, values: Iterable[Place]) -> frozenset[str]:
    """Return the modules that returned one of these tensors, on some path."""
    return _same_tensors(case, values)[0]


def _same_tensors(case: Case, values: Iterable[Place]) -> tuple[frozenset[str], frozenset[Place]]:
    """Return the modules that returned one of these tensors, on some path, and all values that it
    is.

    A block hands its inputs on as they are, and ``detach`` and ``iadd`` give the memory of their
    argument.
    """
    modules = inferred(case).modules
    callers = _callers(case)
    found: set[str] = set()
    seen: set[Place] = set()
    open_values = list(values)
    while open_values:
        place = open_values.pop()
        if place in seen:
            continue
        seen.add(place)
        names, sources = _origins(case, modules[place[0]], place, callers)
        found |= names
        open_values += sources
    return frozenset(found), frozenset(seen)


def _origins(
    case: Case, block: Module, place: Place, callers: dict[str, list[tuple[str, Call]]]
) -> tuple[set[str], list[Place]]:
    """The modules that returned this value, and the other values that are the same tensor."""
    path, value = place
    assert isinstance(block, Block)
    if value in block.inputs:
        index = block.inputs.index(value)
        return set(), [(outer, call.args[index]) for outer, call in callers.get(path, [])]
    node = next(node for node in block.nodes if node.name == value_node(value))
    if isinstance(node, TensorOp):
        return set(), [(path, node.args[0])] if node.op in ("iadd", "detach") else []
    index = int(value.partition(".")[2] or 0)
    called = list(_targets(case, path, node))
    inner = [(p, module.outputs[index]) for p, module in called if isinstance(module, Block)]
    return {p for p, _ in called}, inner


def _callers(case: Case) -> dict[str, list[tuple[str, Call]]]:
    """Return every call of a module, with the path of the block that makes it."""
    calls: dict[str, list[tuple[str, Call]]] = {}
    for path, block in inferred(case).modules.items():
        for node in block.nodes if isinstance(block, Block) else ():
            if isinstance(node, Call):
                for target, _ in _targets(case, path, node):
                    calls.setdefault(target, []).append((path, node))
    return calls


def _targets(case: Case, path: str, call: Call) -> Iterator[tuple[str, Module]]:
    for name in call.modules:
        target = resolve(case.model, join(path, name))
        assert target is not None
        yield target
