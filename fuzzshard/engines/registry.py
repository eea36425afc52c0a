"""Engines by name: each that ``parts/engines`` lists has a folder here, with its class."""

from __future__ import annotations

import importlib

from fuzzshard.case.case import TRACED_BACKWARD, Case
from fuzzshard.case.facts import facts
from fuzzshard.case.features import features
from fuzzshard.case.schedule_state import ranks_differ
from fuzzshard.engines.base import Engine
from fuzzshard.engines.exclusion import Exclusion
from fuzzshard.engines.reference.engine import Reference
from fuzzshard.parts.engines import ENGINES as SPECS
from fuzzshard.parts.engines import spec_of

ENGINES: dict[str, type[Engine]] = {
    name: importlib.import_module(f"fuzzshard.engines.{name}.engine").ENGINE for name in SPECS
}


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
    "graph leaves out what nothing reads",
)
RANKS_DIFFER = Exclusion(
    "ranks run different programs, which FSDP1 alone looks for",
    "distributed.py, class docstring: 'each distributed process has the exact same model'; "
    "fully_sharded_data_parallel.py checks the order of units at debug level DETAIL",
)


REFUSALS = tuple(dict.fromkeys(r for engine in ENGINES.values() for r in engine.refusals))
"""Those of all engines, some of which have the same."""


def engine_of(name: str) -> type[Engine]:
    """Return the engine of that name; the reference is one too."""
    return ENGINES.get(name, Reference)


def not_applicable(case: Case, engine: str) -> Exclusion | None:
    """Why the documented contract of an engine does not cover a case, or None."""
    if engine in ENGINES and _may_draw_otherwise(case):
        return DRAWS_OTHERWISE
    if ranks_differ(case) and not spec_of(engine).keeps_order:
        return RANKS_DIFFER
    excluded = map(engine_of(engine).not_applicable, case.on_meshes)
    return next(filter(None, excluded), None)
