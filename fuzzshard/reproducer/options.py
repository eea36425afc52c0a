"""Tensor-parallel plans as arguments of the calls of a script."""

from __future__ import annotations

from fuzzshard.case.options import TensorParallel

_STYLES = {
    "colwise": "ColwiseParallel",
    "rowwise": "RowwiseParallel",
    "sequence": "SequenceParallel",
}
_LAYOUTS = {"replicate": "Replicate()", "sequence": "Shard(1)"}


def parallel_style(plan: TensorParallel) -> str:
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
