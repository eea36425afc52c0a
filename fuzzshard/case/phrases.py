"""Phrases that several texts share: fields that differ, values, modules, ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from fuzzshard.parts.part import Part

_LABELS = {
    "shard_dim": "shard_placement_fn dim",
    "out": "out_features",
    "seq": "sequence length",
}
"""Fields that torch calls otherwise."""


def in_place_of(name: str, new: object, old: object, where: str = "") -> str:
    """Return ``"with NAME=NEW WHERE in place of OLD"``."""
    return (
        f"with {_LABELS.get(name, name)}={value_words(new)}{where} in place of {value_words(old)}"
    )


def value_words(value: object) -> str:
    """Return a value of a field as one would write it."""
    if isinstance(value, Part):
        given = msgspec.to_builtins(value)
        return (
            ", ".join(f"{name}={text}" for name, text in given.items() if name != "type")
            or "the default"
        )
    if isinstance(value, tuple):
        return "(" + ", ".join(map(value_words, value)) + ")" if value else "none"
    return str(value)


def named(path: str) -> str:
    """Return the module at ``path``."""
    return path or "the root"


def fields(old: Part, new: Part, where: str, skip: Sequence[str] = ()) -> Iterator[str]:
    """Yield one phrase for each field in which two parts of one type differ; ``where`` says what
    they are of.
    """
    for name in old.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if before != after and name not in skip:
            yield in_place_of(name, after, before, where)


def span(ranks: Sequence[int]) -> str:
    """Return ``"0-3"`` for ranks in a row, else each of them."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))
