"""Engines by name."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from fuzzshard.case.case import TRACED_BACKWARD, Case
from fuzzshard.case.facts import facts
from fuzzshard.case.features import features
from fuzzshard.case.schedule_state import ranks_differ
from fuzzshard.engines import ddp, fsdp1_contract, fully_shard
from fuzzshard.engines.base import Engine
from fuzzshard.engines.ddp import DDP
from fuzzshard.engines.exclusion import Exclusion
from fuzzshard.engines.fsdp1 import FSDP1, debug_level
from fuzzshard.engines.fully_shard import FullyShard
from fuzzshard.engines.replicate import Replicate
from fuzzshard.instruments import FLAT_PARAMETERS, works

ENGINES: dict[str, type[Engine]] = {e.name: e for e in (DDP, Replicate, FullyShard, FSDP1)}


def _may_draw_otherwise(case: Case) -> bool:
    """Whether dropouts may draw other values compiled than they do in the reference."""
    drops = any(leaf.drops for leaf in facts(case).leaves.values())
    if case.compile not in TRACED_BACKWARD or not drops:
        return False
    return case.compile == "inductor" or bool(
        features(case) & {"edge:unused_value", "edge:unused_output"}
    )


DRAWS_OTHERWISE = Exclusion(
    "dropouts draw other values compiled: Inductor's all, a graph's after one that nothing reads",
    "github.com/pytorch/pytorch/issues/141645: Inductor has a generator of its own, by design; a "
    "graph "
    "leaves out what nothing reads",
)
FLAT_PARAMETERS_UNREAD = Exclusion(
    "the ranges of its flat parameters cannot be told in this version of torch",
    "fuzzshard: an instrument that reads wrong is off (fuzzshard/instruments)",
)
RANKS_DIFFER = Exclusion(
    "ranks run different programs, which FSDP1 alone looks for",
    "distributed.py, class docstring: 'each distributed process has the exact same model'; "
    "fully_sharded_data_parallel.py checks the order of units at debug level DETAIL",
)


def not_applicable(case: Case, engine: str) -> Exclusion | None:
    """Why the documented contract of an engine does not cover a case, or None."""
    if engine in ENGINES and _may_draw_otherwise(case):
        return DRAWS_OTHERWISE
    if engine == FSDP1.name:
        if not works(FLAT_PARAMETERS):
            return FLAT_PARAMETERS_UNREAD
        return fsdp1_contract.not_applicable(case)
    if ranks_differ(case):
        return RANKS_DIFFER
    if engine == FullyShard.name:
        return fully_shard.not_applicable(case)
    if engine in (DDP.name, Replicate.name):
        return ddp.not_applicable(case, built_by_forward=engine == Replicate.name)
    return None


def surroundings(case: Case, engine: str) -> AbstractContextManager[None]:
    """What an engine is built and trained in."""
    return debug_level(case.fsdp1.debug) if engine == FSDP1.name else nullcontext()
