"""Case <-> JSON. Nothing that is loaded is executed; every unknown field is an error."""

from __future__ import annotations

import msgspec

from fuzzshard.case.case import Case
from fuzzshard.errors import InvalidCase

_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Case)


def encode(case: Case) -> bytes:
    """Compact, deterministic JSON: equal cases give equal bytes."""
    return _encoder.encode(case)


def decode(data: bytes | str) -> Case:
    """The Case in ``data``; raises :class:`InvalidCase` for malformed JSON and for unknown fields."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidCase(f"this is not a case: {error}", "restore the file from its campaign") from None
