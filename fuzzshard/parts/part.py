"""The base of every value that a Case is made of."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator

import msgspec

Shape = tuple[int, ...]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every value a Case is made of: frozen, hashable, strict when decoded."""


@functools.cache
def defaults(part: type[Part]) -> dict[str, object]:
    """The defaults of the fields that have one."""
    return {f.name: f.default for f in msgspec.structs.fields(part) if not f.required}


def off_default(part: Part) -> Iterator[str]:
    """The fields of ``part`` that have a default and differ from it."""
    for name, default in defaults(type(part)).items():
        if getattr(part, name) != default:
            yield name


@functools.cache
def choices(part: type[Part]) -> dict[str, tuple[object, ...]]:
    """By field, the values that its type names one by one, where these are several."""
    hints = typing.get_type_hints(part)
    named = {f.name: tuple(_named_values(hints[f.name])) for f in msgspec.structs.fields(part)}
    return {name: values for name, values in named.items() if len(values) > 1}


def _named_values(hint: object) -> Iterator[object]:
    origin = typing.get_origin(hint)
    if hint is bool:
        yield from (True, False)
    elif hint is type(None):
        yield None
    elif origin is typing.Literal:
        yield from typing.get_args(hint)
    elif origin in (types.UnionType, typing.Union):
        for each in typing.get_args(hint):
            yield from _named_values(each)
