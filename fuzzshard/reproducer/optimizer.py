"""The optimizer of a script."""

from __future__ import annotations

from fuzzshard.case.facts import facts
from fuzzshard.case.paths import is_within
from fuzzshard.case.units import units
from fuzzshard.model.statements import assignment, at
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.script import Script
from fuzzshard.reproducer.scope import Scope

_FEW = 3


def optimizer_lines(scope: Scope) -> list[str]:
    """Makes the optimizer; what the case leaves at torch's default is not said."""
    case = scope.case
    lines, parameters = [], f"{scope.model}.parameters()"
    if names := named_one_by_one(scope):
        parameters = f"[{', '.join(at(scope.model, name) for name in names)}]"
    elif excluded := _excluded(scope):
        lines = assignment("excluded", excluded)
        parameters = "[p for n, p in params.items() if n not in excluded]"
    if mixes_kinds(scope):
        scope.uses.add("parameter_groups")
        parameters = f"parameter_groups({parameters.strip('[]')})"
    kind, given = case.optimizer.call()
    plain, own = (
        script.optimizer_line(kind, [parameters, *given], MeshNames(case))
        for script in (Script(), scope.script)
    )
    if own == plain or not scope.aim.trains_reference:
        return [*lines, own]
    wrapped = f"if isinstance({scope.called}, {scope.engine.wrapper}):"
    return [*lines, wrapped, f"    {own}", "else:", f"    {plain}"]


def _excluded(scope: Scope) -> tuple[str, ...]:
    """The names that the model has for what the optimizer does not get."""
    case = scope.case

    def is_excluded(fqn: str) -> bool:
        return any(is_within(fqn, path) for path in case.optimizer.left_out)

    if not scope.has_flat_parameters:
        return tuple(fqn for fqn in facts(case).parameters if is_excluded(fqn))
    inner = "_fsdp_wrapped_module."
    return tuple(
        f"{unit.replace('.', f'.{inner}')}.{inner}_flat_param" if unit else "_flat_param"
        for unit, fqns in units(case).items()
        if is_excluded(fqns[0])
    )


def mixes_kinds(scope: Scope) -> bool:
    """Whether the parameters of some model that is trained differ in mesh, dtype or device."""
    case = scope.case
    if case.dtypes:
        return True
    if not scope.engine.applies_groups:
        return False
    owners = set(facts(case).owners.values())
    groups = [case.wrap[owner] for owner in owners if owner is not None]
    offloaded = {group.does("offloads") for group in groups}
    return (
        len({owner is None for owner in owners}) > 1
        or len(offloaded) > 1
        or bool(case.tensor_parallel)
    )


def named_one_by_one(scope: Scope) -> list[str]:
    """The parameters that the optimizer gets, where a script can name all of them; empty
    elsewhere.
    """
    excluded = set(_excluded(scope))
    if not scope.aim.seeded or not excluded or scope.has_flat_parameters:
        return []
    kept = [fqn for fqn in facts(scope.case).parameters if fqn not in excluded]
    return kept if len(kept) <= _FEW else []


def uses_parameters(scope: Scope) -> bool:
    """Whether the optimizer is made of a dict of named parameters."""
    return bool(scope.case.optimizer.left_out) and not named_one_by_one(scope)
