"""Which modules return a tensor as it is, and which outputs are changed in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block, Call, Module, TensorOp, join, resolve, value_node

Place = tuple[str, str]
"""A value: the path of its block, and its name in there."""


def changed_outputs(case: Case) -> frozenset[str]:
    """Return the modules with an output that ``iadd`` may change on some path."""
    return returned_by(
        case,
        (
            (path, node.args[0])
            for path, block in inferred(case).modules.items()
            for node in (block.nodes if isinstance(block, Block) else ())
            if isinstance(node, TensorOp) and node.op == "iadd"
        ),
    )


def returned_by(case: Case, values: Iterable[Place]) -> frozenset[str]:
    """Return the modules that returned one of these tensors, on some path.

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
    return frozenset(found)


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
