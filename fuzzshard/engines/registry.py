"""Engines by name."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from fuzzshard.case.case import Case
from fuzzshard.case.progress import ranks_differ
from fuzzshard.engines import ddp, fsdp1_contract, fully_shard
from fuzzshard.engines.base import Engine
from fuzzshard.engines.ddp import DDP
from fuzzshard.engines.fsdp1 import FSDP1, debug_level
from fuzzshard.engines.fully_shard import FullyShard
from fuzzshard.engines.replicate import Replicate

ENGINES: dict[str, type[Engine]] = {e.name: e for e in (DDP, Replicate, FullyShard, FSDP1)}


def not_applicable(case: Case, engine: str) -> str | None:
    """Why the documented contract of an engine does not cover a case, or None."""
    if engine == FSDP1.name:
        return fsdp1_contract.not_applicable(case)
    if ranks_differ(case):
        return "ranks run different programs, which FSDP1 alone looks for"
    if engine == FullyShard.name:
        return fully_shard.not_applicable(case)
    if engine in (DDP.name, Replicate.name):
        return ddp.not_applicable(case, built_by_forward=engine == Replicate.name)
    return None


def surroundings(case: Case, engine: str) -> AbstractContextManager[None]:
    """What an engine is built and trained in."""
    if engine == FSDP1.name:
        return debug_level(case.fsdp1.debug)
    return fully_shard.taking_warnings_seriously(case) if engine == FullyShard.name else nullcontext()
