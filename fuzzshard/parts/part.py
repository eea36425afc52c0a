"""The base of every value that a Case is made of."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import types
import typing
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

Shape = tuple[int, ...]
K = TypeVar("K")


def import_files(package: str, path: list[str]) -> None:
    """Import every file of a package, so that :func:`below` finds what it defines."""
    for file in pkgutil.iter_modules(path, f"{package}."):
        importlib.import_module(file.name)


def below(kind: type[K]) -> Iterator[type[K]]:
    """Yield all classes derived from ``kind``, each after what it is derived from."""
    for each in kind.__subclasses__():
        yield each
        yield from below(each)


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every value a Case is made of: frozen, hashable, strict when decoded.

    It prints as code without defaults, which ``from fuzzshard.case import *`` has the names for.
    """

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in _told(self))
        return f"{type(self).__name__}({', '.join(fields)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Prints the same on several lines where it is long: for Hypothesis and IPython."""
        with printer.group(4, f"{type(self).__name__}(", ")"):
            for index, name in enumerate(_told(self)):
                printer.text("," if index else "")
                printer.breakable(" " if index else "")
                printer.text(f"{name}=")
                printer.pretty(getattr(self, name))


def _told(part: Part) -> list[str]:
    """Return the fields that say what a part is."""
    off = {*off_default(part)}
    return [f for f in part.__struct_fields__ if f in off or f not in defaults(type(part))]


def off_default(part: Part) -> Iterator[str]:
    """Yield the fields of ``part`` that have a default and differ from it."""
    for name, default in defaults(type(part)).items():
        if getattr(part, name) != default:
            yield name


def default_of(part: Part, name: str) -> object:
    """Return the default of one field."""
    return defaults(type(part))[name]


@functools.cache
def defaults(part: type[Part]) -> dict[str, object]:
    """Return the defaults of the fields that have one."""
    return {f.name: f.default for f in msgspec.structs.fields(part) if not f.required}


@functools.cache
def choices(part: type[Part]) -> dict[str, tuple[object, ...]]:
    """Return by field, the values that its type names one by one, where these are several; of a
    tuple, those of one item.
    """
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
    elif origin is tuple:
        yield from ((value,) for value in _named_values(typing.get_args(hint)[0]))
    elif origin in (types.UnionType, typing.Union):
        for each in typing.get_args(hint):
            yield from _named_values(each)
