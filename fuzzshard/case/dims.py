"""The sizes a Case stores: widths of inputs and leaves, by the place where they stand."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.edit import map_modules
from fuzzshard.case.graph import Module, walk
from fuzzshard.parts.leaf import Leaf

Key = tuple[str, str]
"""``(path, field)`` of a leaf, or ``("?i", field)`` of the i-th input; ids have the field
``vocab``.
"""


def get_dims(case: Case) -> dict[Key, int]:
    """Return every stored size."""
    dims: dict[Key, int] = {}
    for i, tensor in enumerate(case.inputs.tensors):
        dims[f"?{i}", "vocab" if tensor.kind == "ids" else "size"] = tensor.size
    for path, module in walk(case.model):
        dims |= {(path, field): getattr(module, field) for field in _fields(module)}
    return dims


def set_dims(case: Case, sizes: Mapping[Key, int]) -> Case:
    """Return ``case`` with some sizes replaced; keys that are not there are ignored."""

    def change(path: str, module: Module) -> Module:
        fields = {f: sizes[path, f] for f in _fields(module) if (path, f) in sizes}
        return replace(module, **fields) if fields else module

    tensors = (
        replace(t, size=sizes.get((f"?{i}", "vocab" if t.kind == "ids" else "size"), t.size))
        for i, t in enumerate(case.inputs.tensors)
    )
    return replace(
        case,
        model=map_modules(case.model, change),
        inputs=replace(case.inputs, tensors=tuple(tensors)),
    )


def _fields(module: Module) -> tuple[str, ...]:
    return module.sizes if isinstance(module, Leaf) else ()
