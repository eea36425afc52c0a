"""Engines by name."""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.engines import ddp
from fuzzshard.engines.base import Engine
from fuzzshard.engines.ddp import DDP
from fuzzshard.engines.fully_shard import FullyShard

ENGINES: dict[str, type[Engine]] = {DDP.name: DDP, FullyShard.name: FullyShard}


def not_applicable(case: Case, engine: str) -> str | None:
    """Why the documented contract of an engine does not cover a case, or None."""
    return ddp.not_applicable(case) if engine == DDP.name else None
