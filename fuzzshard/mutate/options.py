"""Mutations of settings: any option flipped, another mesh, other engines, other sizes."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterator
from random import Random

from msgspec.structs import replace

from fuzzshard.case.batches import used_batches
from fuzzshard.case.case import Case, Mesh, RankBatch
from fuzzshard.case.dims import get_dims, set_dims
from fuzzshard.parts.options.fsdp1 import FSDP1_OPTIONS
from fuzzshard.parts.options.wrap_group import GROUP_OPTIONS
from fuzzshard.parts.part import Part, choices

_FIXED = frozenset(
    (
        *("observe", "engines_only", "ranks", "compile", "method"),
        *(option.name for option in (*FSDP1_OPTIONS, *GROUP_OPTIONS) if option.is_rare),
    )
)
"""Options that make a case see less, or that few machines have, or that cost seconds a case."""


def flip_option(rng: Random, case: Case, other: Case) -> Case | None:
    """Another value of any one option that has a few: of the case, a group, an op, a block, the
    optimizer.

    What kind of part changes is drawn first: there are many ops and one optimizer.
    """
    kinds: dict[type[Part], list[tuple[Part, Callable[[Part], Case]]]] = {}
    for part, put in _parts(case, lambda changed: typing.cast(Case, changed)):
        if _choices(part):
            kinds.setdefault(type(part), []).append((part, put))
    part, put = rng.choice(rng.choice(list(kinds.values())))
    name, values = rng.choice(_choices(part))
    return put(
        replace(part, **{name: rng.choice([v for v in values if v != getattr(part, name)])})
    )


def _parts(
    part: Part, put: Callable[[Part], Case]
) -> Iterator[tuple[Part, Callable[[Part], Case]]]:
    """Every part of a case, with what makes a case of a changed one."""
    yield part, put
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, Part):
            yield from _parts(value, functools.partial(_put_field, part, put, name))
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, Part):
                    yield from _parts(item, functools.partial(_put_item, part, put, name, index))


def _put_field(part: Part, put: Callable[[Part], Case], name: str, value: Part) -> Case:
    return put(replace(part, **{name: value}))


def _put_item(part: Part, put: Callable[[Part], Case], name: str, index: int, item: Part) -> Case:
    items = getattr(part, name)
    return put(replace(part, **{name: (*items[:index], item, *items[index + 1 :])}))


def _choices(part: Part) -> list[tuple[str, tuple[object, ...]]]:
    return [(name, values) for name, values in choices(type(part)).items() if name not in _FIXED]


def mesh(rng: Random, case: Case, other: Case) -> Case | None:
    """Other data-parallel axes; the others stay."""
    shape = rng.choice(
        (
            *(Mesh(shard=n) for n in (1, 2, 3, 4, 8)),
            *(
                Mesh(replicate=r, shard=s)
                for r, s in ((2, 2), (1, 2), (2, 1), (2, 3), (1, 4), (4, 2))
            ),
        )
    )
    return replace(case, mesh=replace(case.mesh, shard=shape.shard, replicate=shape.replicate))


def widths(rng: Random, case: Case, other: Case) -> Case | None:
    """Another size of one dimension of the model, or of all that are equal to it."""
    sizes = get_dims(case)
    if not sizes:
        return None
    key = rng.choice(sorted(sizes))
    size = rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 12))
    alike = rng.random() < 0.5
    return set_dims(
        case, {k: size for k, v in sizes.items() if k == key or (alike and v == sizes[key])}
    )


def batch(rng: Random, case: Case, other: Case) -> Case | None:
    """Other sizes of the batch, a sequence axis, other values: a new seed."""
    inputs = replace(case.inputs, batch=rng.randint(1, 4), seq=rng.choice((0, 1, 2, 3)))
    return replace(case, inputs=inputs, seed=rng.randrange(1 << 16))


def rank_batch(rng: Random, case: Case, other: Case) -> Case | None:
    """Another number of rows on one rank, in every batch or in one; or the usual number again."""
    items = list(case.inputs.rank_batches)
    if items and rng.random() < 0.3:
        del items[rng.randrange(len(items))]
    else:
        batch = rng.choice((None, *used_batches(case)))
        rank = rng.randrange(case.mesh.data_size)
        items = [item for item in items if (item.rank, item.batch) != (rank, batch)]
        items.append(RankBatch(rank=rank, rows=rng.choice((0, 1, 1, 2, 3, 4, 5)), batch=batch))
    inputs = replace(case.inputs, rank_batches=tuple(items), same_on_ranks=False)
    return replace(case, inputs=inputs)
