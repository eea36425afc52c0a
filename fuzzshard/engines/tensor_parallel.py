"""Tensor parallelism of a plain model by ``parallelize_module``, before ``fully_shard`` gets
it.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement

from fuzzshard.case.case import Case
from fuzzshard.case.options import TensorParallel

_LAYOUTS: dict[str, Placement | None] = {
    "default": None,
    "replicate": Replicate(),
    "sequence": Shard(1),
}


def parallelize_tensors(case: Case, model: nn.Module, mesh: DeviceMesh) -> None:
    """Parallelizes the modules of the plan over ``mesh``, and ties again what it registered
    anew.
    """
    parallelize_module(model, mesh, {plan.module: _style(plan) for plan in case.tensor_parallel})
    for tie in case.ties:
        path, _, name = tie.parameter.rpartition(".")
        model.get_submodule(path).register_parameter(name, model.get_parameter(tie.source))


def _style(plan: TensorParallel) -> ParallelStyle:
    if plan.style == "sequence":
        return SequenceParallel(use_local_output=plan.local_output)
    style = ColwiseParallel if plan.style == "colwise" else RowwiseParallel
    return style(
        input_layouts=_LAYOUTS[plan.input],
        output_layouts=_LAYOUTS[plan.output],
        use_local_output=plan.local_output,
    )
