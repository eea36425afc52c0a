"""What sees private state of torch, or states what torch does within, and whether it can be
believed.

An *instrument* reads names that are private to torch, or holds what torch does within against what
its documentation says. In a release that fuzzshard does not know either may be wrong. So ranks
prove every instrument when they start (:mod:`fuzzshard.world.proofs`): they run tiny cases
whose readings follow from public facts alone. One that reads wrong is switched off. An unknown
torch then costs some sight, and never a false alarm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.engines import spec_of
from fuzzshard.verdict import Finding

OFF = "instruments off"
"""The key of a world's ``info`` under which instruments are that are off, each with what it
read.
"""


class Instrument(NamedTuple):
    """One way to see within the engines that it is ``of``.

    It makes the findings that say so (``sees``, by
    :meth:`fuzzshard.parts.oracle.Oracle.instrument`). ``unseen`` says what nobody sees without it.
    """

    name: str
    of: Callable[[EngineSpec], bool]
    unseen: str
    sees: str = ""

    def makes(self, finding: Finding) -> bool:
        """Return whether ``finding`` rests on this instrument."""
        if finding.rule.instrument(finding.detail) != (self.sees or self.name):
            return False
        return not finding.engine or self.of(spec_of(finding.engine))


def _groups(spec: EngineSpec) -> bool:
    return spec.applies_groups


def _units(spec: EngineSpec) -> bool:
    return spec.has_units


UNREDUCED = Instrument(
    "unreduced gradients",
    _groups,
    "wrong values of fully_shard's gradients while they wait for their reduction",
)
GROUP_STATES = Instrument(
    "group states",
    _groups,
    "collectives and states that a run of fully_shard leaves behind",
)
UNSHARDED_MEMORY = Instrument(
    "unsharded memory",
    _groups,
    "unsharded parameters and buffers that fully_shard does not free",
)
POST_BACKWARDS = Instrument(
    "post-backwards of fully_shard",
    _groups,
    "groups of fully_shard that reshard and reduce later than they could",
    sees="post-backwards",
)
FSDP1_POST_BACKWARDS = Instrument(
    "post-backwards of FSDP1",
    _units,
    "units of FSDP1 that reshard later than they could",
    sees="post-backwards",
)
COLLECTIVES = Instrument(
    "collectives",
    _groups,
    "collectives of fully_shard that are repeated, or of a wrong size or dtype",
)
REGISTRATION = Instrument(
    "registration",
    _groups,
    "parameters that fully_shard registers otherwise than documented",
)
STREAMS = Instrument(
    "streams",
    lambda spec: True,
    "accesses of several CUDA streams to one memory that nothing orders",
)
FLAT_PARAMETERS = Instrument(
    "flat parameters",
    _units,
    "all of FSDP1, which is not judged",
)

INSTRUMENTS = (
    UNREDUCED,
    GROUP_STATES,
    UNSHARDED_MEMORY,
    POST_BACKWARDS,
    FSDP1_POST_BACKWARDS,
    COLLECTIVES,
    REGISTRATION,
    STREAMS,
    FLAT_PARAMETERS,
)
"""Every instrument, in the order in which reports name them."""


class InstrumentError(Exception):
    """A reading raised: what an instrument relies on is not there. No engine is to blame."""

    def __init__(self, name: str, reading: str) -> None:
        super().__init__(name, reading)
        self.name = name
        self.reading = reading

    def __str__(self) -> str:
        return f"the instrument of {self.name} {self.reading}, although it had proved itself"


_off: dict[str, str] = {}


def switch_off(readings: Mapping[str, str]) -> None:
    """Switch off the instruments named in ``readings``, in this process, for what they read."""
    _off.update(readings)


def works(instrument: Instrument) -> bool:
    """Return whether ``instrument`` is on in this process."""
    return instrument.name not in _off


def believed(finding: Finding) -> bool:
    """Return whether no instrument that is off has made ``finding``."""
    return not any(i.makes(finding) for i in INSTRUMENTS if not works(i))


@contextlib.contextmanager
def reading(instrument: Instrument) -> Iterator[None]:
    """Turn whatever is raised by code that reads private names into an
    :class:`InstrumentError`.
    """
    try:
        yield
    except Exception as error:
        raise InstrumentError(
            instrument.name, f"raised {type(error).__name__}: {error}"
        ) from error


def off_text(readings: Mapping[str, str]) -> str:
    """Return the text that a world's ``info`` has at :data:`OFF`; :func:`off_lines` reads it."""
    return "; ".join(
        f"{name}: {' '.join(text.replace(';', ',').split())}" for name, text in readings.items()
    )


def off_readings(text: str) -> dict[str, str]:
    """Return what each instrument that is off has read, from the ``text`` of :func:`off_text`."""
    return {
        name: said for name, _, said in (each.partition(": ") for each in text.split("; ") if each)
    }


def off_lines(info: Mapping[str, str]) -> list[str]:
    """Return a line for each instrument that is off in the worlds that ``info`` describes."""
    lines = []
    for name, text in off_readings(info.get(OFF, "")).items():
        unseen = next((i.unseen for i in INSTRUMENTS if i.name == name), "")
        lines.append(
            f"instrument off: {name} (torch {info.get('torch', '')}: {text}); not seen without "
            f"it: {unseen}"
        )
    return lines
