"""What makes one case differ from another, in a reader's words."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterator, Sequence

import msgspec

from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block, Module, Part, walk
from fuzzshard.case.order import default_of, off_default
from fuzzshard.corpus.entry import mesh_text
from fuzzshard.report.module_tree import model_name
from fuzzshard.report.program import program

MOST_CHANGES = 3
"""What an edit takes along (a module and its group, say) is named up to this many times."""

_NOUNS = {
    "engines": "engine",
    "wrap": "group",
    "schedule": "op",
    "checkpoints": "checkpoint",
    "freezes": "freeze",
    "ties": "tie",
    "dtypes": "parameter dtype",
    "tensors": "input",
    "ignored": "ignored",
    "delays": "delay",
    "expect": "expectation",
    "modules": "module",
    "children": "child",
    "outputs": "output",
    "inputs": "input",
    "exclude": "excluded",
}


def change_text(before: Case, after: Case) -> str:
    """What ``after`` has otherwise than ``before``.

    For example ``"reshard_after_forward of group 0 left at its default (None)"``.
    """
    found = list(dict.fromkeys(_changes(before, after)))
    more = f"; and {len(found) - MOST_CHANGES} more" if len(found) > MOST_CHANGES else ""
    return "; ".join(found[:MOST_CHANGES]) + more


def _changes(before: Case, after: Case) -> Iterator[str]:
    for field in ("engines", "mesh", "schedule", "model"):
        if (old := getattr(before, field)) == (new := getattr(after, field)):
            continue
        match field:
            case "mesh":
                yield f"mesh {mesh_text(after.mesh)} in place of {mesh_text(before.mesh)}"
            case "schedule":
                lines = [f"{index} ({text})" for index, text in enumerate(program(before.schedule))]
                yield from _items("op", old, new, lines)
            case "model":
                yield from _modules(before.model, after.model)
            case _:
                yield from _items("engine", old, new, list(map(str, old)))
    rest = [f for f in differing(before, after) if f not in ("engines", "mesh", "schedule", "model")]
    for field in rest:
        yield from _field(field, before, after, "")


def differing(before: Part, after: Part) -> list[str]:
    """The fields in which two parts of one type differ."""
    return [
        f.name
        for f in msgspec.structs.fields(type(before))
        if getattr(before, f.name) != getattr(after, f.name)
    ]


def _field(field: str, before: Part, after: Part, owner: str) -> Iterator[str]:
    """One field of ``owner``, as ``"momentum of optimizer"``."""
    old, new = getattr(before, field), getattr(after, field)
    name = f"{field} of {owner}" if owner else field
    if field not in off_default(after) and field in off_default(before) and not isinstance(old, tuple):
        yield f"{name} left at its default ({_brief(default_of(after, field))})"
    elif isinstance(old, Part) and type(old) is type(new):
        for inner in differing(old, new):
            yield from _field(inner, old, new, name)
    elif isinstance(old, tuple) and isinstance(new, tuple):
        yield from _items(_NOUNS.get(field, field), old, new, _labels(field, old), owner)
    else:
        yield f"{name} {_brief(new)} in place of {_brief(old)}"


def _labels(field: str, items: Sequence[object]) -> list[str]:
    if field == "wrap":
        return list(map(str, range(len(items))))
    return [_brief(item) for item in items]


def _items(
    noun: str, old: Sequence[Hashable], new: Sequence[Hashable], labels: Sequence[str], owner: str = ""
) -> Iterator[str]:
    """What is dropped from a list, and what is changed in its items."""
    within = f" of {owner}" if owner else ""
    for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        match tag:
            case "delete":
                yield f"without {noun} {', '.join(labels[i:j])}{within}"
            case "replace" if j - i == m - k:
                for index in range(i, j):
                    yield from _item(f"{noun} {labels[index]}{within}", old[index], new[k + index - i])
            case "replace" | "insert":
                yield f"other {noun}s{within}: {', '.join(map(_brief, new[k:m]))}"


def _item(name: str, old: object, new: object) -> Iterator[str]:
    if isinstance(old, Part) and isinstance(new, Part) and type(old) is type(new):
        for field in differing(old, new):
            yield from _field(field, old, new, name)
    else:
        yield f"{_brief(new)} in place of {name}"


def _modules(before: Block, after: Block) -> Iterator[str]:
    """Modules that are gone or of another kind, then blocks that compute something else."""
    old, new = dict(walk(before)), dict(walk(after))
    for path, module in old.items():
        if path not in new and path.rpartition(".")[0] in new:
            yield f"without {model_name(path)} ({_kind(module)})"
    for path in new:
        if path not in old:
            yield f"{model_name(path)} ({_kind(new[path])}) in its place"
    for path in (path for path in old if path in new and old[path] != new[path]):
        yield from _module(model_name(path), old[path], new[path])


def _module(name: str, old: Module, new: Module) -> Iterator[str]:
    if type(old) is not type(new):
        yield f"{_kind(new)} in place of {_kind(old)} as {name}"
    elif isinstance(old, Block) and isinstance(new, Block):
        fields = set(differing(old, new))
        if fields & {"nodes", "inputs", "outputs"}:
            dropped = len(old.nodes) - len(new.nodes)
            fewer = f", {dropped} nodes fewer" if dropped > 0 else ""
            yield f"another forward of {name}{fewer}"
        for field in sorted(fields - {"nodes", "inputs", "outputs", "children"}):
            yield from _field(field, old, new, name)
    else:
        for field in differing(old, new):
            yield from _field(field, old, new, name)


def _kind(module: Module) -> str:
    return type(module).__name__


def _brief(value: object) -> str:
    """A part of a case with what is not at its default; anything else as it is."""
    if not isinstance(value, Part):
        return str(value)
    required = [f.name for f in msgspec.structs.fields(type(value)) if f.required]
    fields = ", ".join(f"{name}={getattr(value, name)}" for name in (*required, *off_default(value)))
    return f"{type(value).__name__}({fields})"
