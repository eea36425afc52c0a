"""Case <-> JSON. Nothing that is loaded is executed; every unknown field is an error."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from fuzzshard.case.case import Case
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.part import Part

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Case)


def encode(case: Case) -> bytes:
    """Return compact, deterministic JSON: equal cases give equal bytes."""
    return _encoder.encode(_interned(case))


def _interned(value: Any) -> Any:
    """``value`` with defaults as the very default objects: msgspec omits floats and tuples by
    identity.
    """
    if isinstance(value, tuple):
        return tuple(map(_interned, value))
    if not isinstance(value, Part):
        return value
    fields = {}
    for name, default in _defaults(type(value)):
        present = getattr(value, name)
        is_default = type(present) is type(default) and present == default
        fields[name] = default if is_default else _interned(present)
    return type(value)(**fields)


@functools.cache
def _defaults(part: type[Part]) -> tuple[tuple[str, Any], ...]:
    """Return every field with its default; a required field has ``NODEFAULT``."""
    return tuple((field.name, field.default) for field in msgspec.structs.fields(part))


def decode(data: bytes | str) -> Case:
    """Return the Case in ``data``; raises :class:`InvalidCase` for malformed JSON and for unknown
    fields.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidCase(
            f"this is not a case: {error}", "restore the file from its campaign"
        ) from None
