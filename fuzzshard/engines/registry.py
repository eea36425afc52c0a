"""Engines by name: each that ``parts/engines`` lists has a folder here, with its class."""

from __future__ import annotations

import importlib

from fuzzshard.analysis.exclusions import exclusion
from fuzzshard.case.case import Case
from fuzzshard.engines.base import Engine
from fuzzshard.engines.mesh import HAS_RANK_ORDER
from fuzzshard.engines.reference.engine import Reference
from fuzzshard.parts.engines import ENGINES as SPECS
from fuzzshard.parts.exclusion import Exclusion

ENGINES: dict[str, type[Engine]] = {
    name: importlib.import_module(f"fuzzshard.engines.{name}.engine").ENGINE for name in SPECS
}

REFUSALS = tuple(dict.fromkeys(r for engine in ENGINES.values() for r in engine.refusals))
"""Those of all engines, some of which have the same."""


def engine_of(name: str) -> type[Engine]:
    """Return the engine of that name; the reference is one too."""
    return ENGINES.get(name, Reference)


def not_applicable(case: Case, engine: str) -> Exclusion | None:
    """Return why the documented contract of an engine does not cover a case, or None; or what the
    case needs and the torch at hand lacks.
    """
    if (excluded := exclusion(case, engine)) is not None:
        return excluded
    lacks = lacking(case, engine)
    source = "fuzzshard: asked of the torch at hand"
    return Exclusion(f"this version of torch has no {lacks}", source) if lacks else None


def lacking(case: Case, engine: str) -> str | None:
    """Return what an engine needs for a case and this version of torch has not, or None."""
    if case.mesh.made == "reversed" and not HAS_RANK_ORDER and engine in ENGINES:
        return "preserve_rank_order of DeviceMesh"
    return engine_of(engine).lacking(case)
