"""How the model of a script gets its engine, as statements."""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.engines.script import script_of
from fuzzshard.model.statements import at
from fuzzshard.parts.engines import spec_of
from fuzzshard.reproducer.mesh import MeshNames
from fuzzshard.reproducer.options import parallel_style
from fuzzshard.reproducer.setup import checkpoint_lines, freeze_lines


def engine_lines(
    case: Case, engine: str, model: str, *, seeds: bool = False, made: list[str] | None = None
) -> list[str]:
    """Builds ``model`` and parallelises it in place; what an engine puts around it comes later.

    With ``seeds`` the values are those of the variable ``seed``. ``made`` are other statements
    that build it.
    """
    by_groups = spec_of(engine).applies_groups
    meta = by_groups and case.init == "meta"
    lines = list(made or [f"{model} = {build_call(case, meta=meta, seeds=seeds)}"])
    if by_groups and case.tensor_parallel:
        lines += _tensor_parallel_lines(case, model)
    lines += checkpoint_lines(case, model, reference=False)
    return lines + script_of(engine).wrap_lines(case, model, MeshNames(case), seeds=seeds)


def around_lines(case: Case, engine: str, model: str, variable: str) -> list[str]:
    """Assigns to ``variable`` what the engine puts around ``model``, if it does."""
    return script_of(engine).around_lines(case, model, variable, MeshNames(case))


def build_call(case: Case, *, meta: bool = False, seeds: bool = False) -> str:
    """Makes the plain model, on the device or on the ``meta`` device."""
    arguments = ["seed=seed"] * seeds
    if case.init == "meta":
        arguments = ['"meta"' if meta else "device", *arguments]
    return f"build({', '.join(arguments)})"


def _tensor_parallel_lines(case: Case, model: str) -> list[str]:
    """The plan, and what it registers anew: ties, and parameters that are to be frozen."""
    plans = [f'"{plan.module}": {parallel_style(plan)}' for plan in case.tensor_parallel]
    lines = ["plan = {", *(f"    {plan}," for plan in plans), "}"]
    lines.append(f'parallelize_module({model}, world_mesh["tp"], plan)')
    lines += [f"{at(model, tie.parameter)} = {at(model, tie.source)}" for tie in case.ties]
    return lines + freeze_lines(case, model, after_wrap=False)
