"""The optimizer of a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzzshard.analysis.schedule_state import first
from fuzzshard.case.case import Case
from fuzzshard.model.statements import call_lines
from fuzzshard.program.engine_script import EngineScript

if TYPE_CHECKING:
    from fuzzshard.reproducer.scope import Scope


def optimizer_lines(scope: Scope) -> list[str]:
    """Make the optimizer, and what changes its learning rate."""
    lines, parameters, spec = [], [scope.trained], scope.case.optimizer
    if apart := scope.within(spec.set_apart):
        lines = call_lines("apart = ", apart, "{}")
        listed = f"[p for p in {scope.trained} if p {{}} apart]"
        parameters = [listed.format("not in"), listed.format("in")][: len(spec.each)]
    own, plain = (
        scope.optimizer_lines(parameters, script) for script in (scope.script, EngineScript())
    )
    return [*lines, *scope.for_wrapper(own, plain), *scope.beside_optimizer]


def made_by_saves(case: Case, name: str) -> float | None:
    """What a save on disk may fill the state ``name`` with, where no step has made it; None: there
    is no such save.

    ``name`` is that of a finding, "momentum_buffer of a.weight".
    """
    saves = any(op.via == "dcp" for op in case.schedule)
    return case.optimizer.initially(name.partition(" of ")[0]) if saves else None


def loads_what_a_save_made(case: Case, name: str, op: int) -> bool:
    """Whether ``op`` loads the state ``name`` as a save on disk made it, before the first step."""
    saves = [index for index, earlier in enumerate(case.schedule[:op]) if earlier.via]
    step = first(case, lambda each: each.updates or each.stepped)
    is_early = case.schedule[op].loads and saves and saves[-1] < step
    return bool(is_early) and made_by_saves(case, name) is not None
