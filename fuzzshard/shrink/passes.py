"""What a pass is, and the edits most passes are made of.

A pass looks at a case and offers *edits*, pure functions from Case to Case. Offering edits instead
of finished candidates lets the reducer try many of them at once: forty ops that do not matter go
in one evaluation. Edits must commute well enough for that: they name what they change by path, or
by index, in ascending order, and change nothing at a lower index. The reducer applies them last to
first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.edit import edit_block, set_module, with_item, without
from fuzzshard.case.graph import Block, Module

Edit = Callable[[Case], Case]


@dataclasses.dataclass(frozen=True)
class Pass:
    """A named source of edits.

    The edits of an ``independent`` pass are tried all at once, then by halves; those of any other
    pass exclude each other and are tried one by one, the boldest first.
    """

    name: str
    edits: Callable[[Case], Iterable[Edit]]
    independent: bool = True


def lower(value: int, least: int = 1) -> Iterator[int]:
    """Yield smaller values than ``value``: the two least, then from a half ever closer."""
    offered = [least, least + 1]
    gap = (value - least + 1) // 2
    while gap:
        offered.append(value - gap)
        gap //= 2
    yield from dict.fromkeys(v for v in offered if least <= v < value)


def put(**fields: object) -> Edit:
    """Sets fields of the case."""
    return lambda case: replace(case, **fields)


def put_module(path: str, module: Module | None) -> Edit:
    """Sets the module at ``path``, or drops it."""
    return lambda case: set_module(case, path, module)


def change_block(path: str, change: Callable[[Block], Block]) -> Edit:
    """Changes the block at ``path``."""
    return lambda case: replace(case, model=edit_block(case.model, path, change))


def set_block(path: str, **fields: object) -> Edit:
    """Sets fields of the block at ``path``."""
    return change_block(path, lambda block: replace(block, **fields))


def drop_item(field: str, index: int) -> Edit:
    """Drops one item of a field of the case."""
    return lambda case: replace(case, **{field: without(getattr(case, field), index)})


def change_item(field: str, index: int, **fields: object) -> Edit:
    """Changes one item of a field of the case."""

    def edit(case: Case) -> Case:
        items = getattr(case, field)
        return replace(case, **{field: with_item(items, index, replace(items[index], **fields))})

    return edit
