"""The engines, without torch. To add one: its file, its folder in ``fuzzshard/engines``, and a
line here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from fuzzshard.parts.engine import EngineSpec as EngineSpec
from fuzzshard.parts.engines.context_parallel import ContextParallel
from fuzzshard.parts.engines.ddp import DistributedDataParallel
from fuzzshard.parts.engines.expert_parallel import ExpertParallel
from fuzzshard.parts.engines.fsdp1 import FullyShardedDataParallel
from fuzzshard.parts.engines.fully_shard import FullyShard
from fuzzshard.parts.engines.pipelining import PipelineParallel
from fuzzshard.parts.engines.reference import Reference
from fuzzshard.parts.engines.replicate import Replicate
from fuzzshard.parts.engines.simple_fsdp import SimpleFSDP
from fuzzshard.parts.engines.zero_redundancy import ZeroRedundancy

ENGINES: dict[str, EngineSpec] = {
    spec.name: spec
    for spec in (
        *(DistributedDataParallel(), Replicate(), FullyShard(), FullyShardedDataParallel()),
        ZeroRedundancy(),
        PipelineParallel(),
        ExpertParallel(),
        SimpleFSDP(),
        ContextParallel(),
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
