"""The optimizer of a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.paths import is_within_any
from fuzzshard.case.schedule_state import first
from fuzzshard.case.units import units
from fuzzshard.model.statements import assignment
from fuzzshard.program.script import Script

if TYPE_CHECKING:
    from fuzzshard.reproducer.scope import Scope

_FEW = 3


def optimizer_lines(scope: Scope) -> list[str]:
    """Makes the optimizer, and what changes its learning rate."""
    lines, parameters = [], [scope.trained]
    if names := named_one_by_one(scope):
        parameters = [f"[{', '.join(map(scope.at, names))}]"]
    elif excluded := _excluded(scope):
        variable = "excluded" if scope.case.optimizer.left_out else "apart"
        lines = assignment(variable, excluded)
        listed = f"[p for n, p in params.items() if n {{}} {variable}]"
        if scope.engine.in_stages:
            lines = [f"{variable} = {{{', '.join(map(scope.at, excluded))}}}"]
            listed = f"[p for p in {scope.trained} if p {{}} {variable}]"
        parameters = [listed.format("not in"), listed.format("in")]
    parameters = parameters[: len(scope.case.optimizer.each)]
    own, plain = (scope.optimizer_lines(parameters, script) for script in (scope.script, Script()))
    return [
        *lines,
        *scope.for_wrapper(own, plain),
        *scope.scheduler_lines(),
        *scope.scaler_lines(),
    ]


def _excluded(scope: Scope) -> tuple[str, ...]:
    """The names that the model has for what the optimizer does not get."""
    case = scope.case

    def is_excluded(fqn: str) -> bool:
        return is_within_any(fqn, case.optimizer.set_apart)

    if not scope.has_flat_parameters:
        return tuple(fqn for fqn in facts(case).parameters if is_excluded(fqn))
    inner = "_fsdp_wrapped_module."
    return tuple(
        f"{unit.replace('.', f'.{inner}')}.{inner}_flat_param" if unit else "_flat_param"
        for unit, fqns in units(case).items()
        if is_excluded(fqns[0])
    )


def named_one_by_one(scope: Scope) -> list[str]:
    """The parameters that the only optimizer gets, where a script can name all of them; empty
    elsewhere.
    """
    excluded = set(_excluded(scope)) if scope.case.optimizer.left_out else None
    listed = scope.has_flat_parameters or scope.engine.in_stages
    if not excluded or listed:
        return []
    kept = [fqn for fqn in facts(scope.case).parameters if fqn not in excluded]
    return kept if len(kept) <= _FEW else []


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


def uses_parameters(scope: Scope) -> bool:
    """Whether optimizers are made of a dict of named parameters."""
    apart = scope.case.optimizer.set_apart
    return bool(apart) and not scope.engine.in_stages and not named_one_by_one(scope)
