"""Hypothesis strategies for Cases, one file per dimension. Imports the Case only, and no torch."""

from fuzzshard.strategies.draw import case_stream, draw_cases
from fuzzshard.strategies.given import (
    cases,
    freeze_masks,
    meshes,
    module_graphs,
    reuse_patterns,
    schedules,
    wrapping_plans,
)

__all__ = [
    "case_stream",
    "cases",
    "draw_cases",
    "freeze_masks",
    "meshes",
    "module_graphs",
    "reuse_patterns",
    "schedules",
    "wrapping_plans",
]
