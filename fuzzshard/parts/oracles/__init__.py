"""The oracles: the files of this folder define them, and all are found here."""

from __future__ import annotations

import re

from fuzzshard.errors import UsageError
from fuzzshard.parts.oracle import Oracle, TensorOracle
from fuzzshard.parts.part import below, import_files

import_files(__name__, __path__)


ORACLES: tuple[Oracle, ...] = tuple(
    sorted((kind() for kind in below(Oracle) if kind.name), key=lambda oracle: oracle.place)
)
"""Every oracle, the one nearest to the cause first."""

TENSOR_ORACLES = tuple(oracle for oracle in ORACLES if isinstance(oracle, TensorOracle))
"""Those that compare a tensor of an engine with the reference's."""

_NAMED = {oracle.name: oracle for oracle in ORACLES}


def named(name: str) -> Oracle:
    """Return the oracle of that name; one of another release compares tensors, for all we know.

    Raises :class:`UsageError` for what can be no name.
    """
    return _NAMED.get(name) or _of_another_release(name)


def tensor_oracle(name: str) -> TensorOracle:
    """Return the oracle of that name, which compares tensors."""
    oracle = named(name)
    assert isinstance(oracle, TensorOracle), name
    return oracle


def _of_another_release(name: str) -> TensorOracle:
    if not re.fullmatch(r"\w*", name):
        raise UsageError(f"{name!r} is no name of an oracle", "restore the entry")

    class Unknown(TensorOracle):
        """What nothing else is known of."""

        place = ORACLES[-1].place + 1

    Unknown.name = name
    return Unknown()


def losing(how: str) -> Oracle:
    """Return the oracle of ranks that are lost so (:data:`fuzzshard.parts.oracle.Loses`)."""
    return next(oracle for oracle in ORACLES if oracle.loses == how)
