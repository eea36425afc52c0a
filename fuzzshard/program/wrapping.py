"""How the model of a script gets its engine, as statements."""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.case.options import TensorParallel
from fuzzshard.model.statements import at
from fuzzshard.parts.engines import REFERENCE, spec_of
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.script import script_of
from fuzzshard.program.setup import checkpoint_lines, freeze_lines

_STYLES = {
    "colwise": "ColwiseParallel",
    "rowwise": "RowwiseParallel",
    "sequence": "SequenceParallel",
}
_LAYOUTS = {"replicate": "Replicate()", "sequence": "Shard(1)"}


def engine_lines(
    case: Case, engine: str, model: str, *, seeds: bool = False, made: list[str] | None = None
) -> list[str]:
    """Builds ``model`` and parallelises it in place; what an engine puts around it comes later.

    With ``seeds`` the values are those of the variable ``seed``. ``made`` are other statements
    that build it.
    """
    by_groups = spec_of(engine).applies_groups
    meta = by_groups and case.init == "meta"
    lines = list(made or [f"{model} = {build_call(case, 'seed' * seeds, meta=meta)}"])
    lines += prepared_lines(case, engine, model)
    return lines + script_of(engine).wrap_lines(case, model, MeshNames(case), seeds=seeds)


def prepared_lines(case: Case, engine: str, model: str) -> list[str]:
    """What is done to a model before it is wrapped."""
    spec = spec_of(engine)
    shards = spec.shards_stages(case)
    is_parallel = case.tensor_parallel and (spec.applies_groups or shards)
    lines = _tensor_parallel_lines(case, model) if is_parallel else []
    return lines + checkpoint_lines(case, model, reference=engine == REFERENCE.name)


def around_lines(case: Case, engine: str, model: str, variable: str) -> list[str]:
    """Assigns to ``variable`` what the engine puts around ``model``, if it does."""
    return script_of(engine).around_lines(case, model, variable, MeshNames(case))


def build_call(case: Case, seed: object = "", *, meta: bool = False) -> str:
    """Makes the plain model, on the device or on the ``meta`` device; with the values of that
    ``seed``.
    """
    arguments = [f"seed={seed}"] if seed != "" else []
    if case.init == "meta":
        arguments = ['"meta"' if meta else "device", *arguments]
    return f"build({', '.join(arguments)})"


def _tensor_parallel_lines(case: Case, model: str) -> list[str]:
    """The plan, and what it registers anew: ties, and parameters that are to be frozen."""
    plans = [f'"{plan.module}": {_style(plan)}' for plan in case.tensor_parallel]
    lines = ["plan = {", *(f"    {plan}," for plan in plans), "}"]
    lines.append(f'parallelize_module({model}, world_mesh["tp"], plan)')
    lines += [f"{at(model, tie.parameter)} = {at(model, tie.source)}" for tie in case.ties]
    return lines + freeze_lines(case, model)


def _style(plan: TensorParallel) -> str:
    """The style of one module in the plan of ``parallelize_module``."""
    arguments = []
    if plan.input != "default":
        arguments.append(f"input_layouts={_LAYOUTS[plan.input]}")
    if plan.output != "default":
        arguments.append(f"output_layouts={_LAYOUTS[plan.output]}")
    if plan.style != "sequence" and not plan.local_output:
        arguments.append("use_local_output=False")
    if plan.style == "sequence" and plan.local_output:
        arguments.append("use_local_output=True")
    return f"{_STYLES[plan.style]}({', '.join(arguments)})"
