"""The engines, without torch, each with a table of what its contract does not cover. To add one:
its class in a module here, its place in the list, and its folder in ``fuzzshard/engines``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

from fuzzshard.parts.engine import COMPILED, UNEVEN
from fuzzshard.parts.engine import EngineSpec as EngineSpec
from fuzzshard.parts.engines.ddp import DistributedDataParallel, Replicate, ZeroRedundancy
from fuzzshard.parts.engines.fsdp1 import FullyShardedDataParallel
from fuzzshard.parts.engines.fully_shard import (
    SPMD,
    ContextParallel,
    ExpertParallel,
    FullyShard,
    ReplicateWithFSDP,
)
from fuzzshard.parts.engines.pipelining import PipelineParallel
from fuzzshard.parts.engines.simple_fsdp import SimpleFSDP
from fuzzshard.parts.exclusion import Excludes


class Reference(EngineSpec):
    """Judges the others, and is accused where they agree with each other against it."""

    name = "reference"
    title = "reference"
    tag = "reference"
    excludes: ClassVar[Excludes] = {
        key: row for key, row in EngineSpec.excludes.items() if key not in {*COMPILED, UNEVEN}
    }


ENGINES: dict[str, EngineSpec] = {
    spec.name: spec
    for spec in (
        *(DistributedDataParallel(), Replicate(), FullyShard(), FullyShardedDataParallel()),
        ZeroRedundancy(),
        PipelineParallel(),
        ExpertParallel(),
        SimpleFSDP(),
        ContextParallel(),
        ReplicateWithFSDP(),
        SPMD(),
    )
}
"""Those that are judged, in the order in which they train."""

BY_GROUPS = next(spec for spec in ENGINES.values() if spec.applies_groups)
"""The one that wrap groups are written for."""

REFERENCE = Reference()
"""What they are judged by."""

OPTIONS = tuple(dict.fromkeys(spec.options for spec in reversed(ENGINES.values()) if spec.options))
"""The fields of a case that have options of engines, in the order in which they are drawn."""


def spec_of(engine: str) -> EngineSpec:
    """Return what the engine of that name says of itself; the reference is what else there is."""
    return ENGINES.get(engine, REFERENCE)


def implementation(engine: str) -> str:
    """Return the name of the engine whose code that of a name runs, which it is derived from: no
    witness for it.
    """
    spec = spec_of(engine)
    return next(each.name for each in (*ENGINES.values(), spec) if isinstance(spec, type(each)))


def meant_by(text: str) -> str:
    """Return the name of the engine that people call ``text``, or almost; empty for none."""
    names = {
        name.strip("`").lower(): spec.name
        for spec in ENGINES.values()
        for name in (spec.name, spec.title, spec.tag, *spec.nicknames)
    }
    close = difflib.get_close_matches(text.lower(), names, n=1, cutoff=0.75)
    return names[close[0]] if close else ""


def specs(engines: Iterable[str]) -> tuple[EngineSpec, ...]:
    """Return what ``engines`` say of themselves."""
    return tuple(map(spec_of, engines))
