"""Edits that make a case bigger, so that the passes may then get past a local minimum.

A feed-forward leaf cannot lose one of its two Linears; the block it stands for can. Parameters
keep their FQNs, and with them their values.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fuzzshard.case.case import Case, Freeze, TensorSpec
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import Block, Call, Child, TensorOp, walk
from fuzzshard.case.paths import is_within
from fuzzshard.parts.leaf import Leaf
from fuzzshard.shrink.passes import Edit, put, put_module


def detours(case: Case) -> Iterator[Edit]:
    """Leaves and list groups taken apart, freezes by parameter, a float input beside ids."""
    found = facts(case)
    if all(t.kind == "ids" for t in case.inputs.tensors):
        inputs = replace(case.inputs, tensors=(*case.inputs.tensors, TensorSpec(size=1)))
        yield put(inputs=inputs, model=replace(case.model, inputs=(*case.model.inputs, "extra")))
    for path, module in walk(case.model):
        if isinstance(module, Leaf) and (parts := module.apart(found.width(path))):
            yield put_module(path, _in_sequence(parts))
    for index, group in enumerate(case.wrap):
        if len(group.modules) > 1:
            single = tuple(replace(group, modules=(m,)) for m in group.modules)
            yield put(wrap=(*case.wrap[:index], *single, *case.wrap[index + 1 :]))
    for index, freeze in enumerate(case.freezes):
        fqns = [f for f in found.parameters if is_within(f, freeze.target) and f != freeze.target]
        if len(fqns) > 1:
            each = tuple(Freeze(target=f, after_wrap=freeze.after_wrap) for f in fqns)
            yield put(freezes=(*case.freezes[:index], *each, *case.freezes[index + 1 :]))


def _in_sequence(parts: dict[str, Leaf]) -> Block:
    first, second = parts
    return Block(
        children=tuple(Child(name=name, module=leaf) for name, leaf in parts.items()),
        nodes=(
            Call(name="h0", module=first, args=("x",)),
            TensorOp(name="h1", op="relu", args=("h0",)),
            Call(name="h2", module=second, args=("h1",)),
        ),
        outputs=("h2",),
    )
