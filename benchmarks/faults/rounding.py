"""Faults of ``fully_shard`` in digits; ``FUZZSHARD_FAULT`` says which, and the file that
``FUZZSHARD_FAULT_DONE`` names is there once it has changed a bit.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad

DONE = Path(os.environ["FUZZSHARD_FAULT_DONE"])


def is_last() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def replace(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write other values into a tensor."""
    if not torch.equal(tensor, values):
        DONE.touch()
        tensor.copy_(values)


def round_to_half(tensor: torch.Tensor) -> None:
    """Leave the digits of bfloat16 of a tensor of float32."""
    if tensor.dtype == torch.float32:
        replace(tensor, tensor.bfloat16().float())


def after_reductions(change: Callable[[torch.Tensor, bool], None]) -> None:
    """Call ``change`` with each gradient that was reduced, and what was there before."""
    reduce = _fsdp_param_group.foreach_reduce

    def foreach_reduce(fsdp_params: list[FSDPParam], *args: Any, **kwargs: Any) -> Any:
        before = [p.sharded_param.grad is not None for p in fsdp_params]
        result = reduce(fsdp_params, *args, **kwargs)
        for had, param in zip(before, fsdp_params, strict=True):
            if param.sharded_param.grad is not None:
                with torch.no_grad():
                    change(param.sharded_param.grad.to_local(), had)
        return result

    _fsdp_param_group.foreach_reduce = foreach_reduce


def one_gradient_is_off_by(relative: float) -> None:
    """One element of a gradient of one rank."""

    def change(gradient: torch.Tensor, had: bool) -> None:
        places = gradient.nonzero()
        if is_last() and len(places):
            values = gradient.clone()
            values[tuple(places[0])] *= 1 + relative
            replace(gradient, values)

    after_reductions(change)


def parameters_in_half() -> None:
    """What is gathered for a forward."""
    gathered = FSDPParam.all_gather_inputs

    @property
    def all_gather_inputs(self: FSDPParam) -> list[torch.Tensor]:
        tensors = [tensor.clone() for tensor in gathered.fget(self)]
        for tensor in tensors:
            round_to_half(tensor)
        return tensors

    FSDPParam.all_gather_inputs = all_gather_inputs


def reductions_in_half() -> None:
    """What is sent to be reduced."""
    copy_in = _fsdp_collectives.foreach_reduce_scatter_copy_in

    def foreach_reduce_scatter_copy_in(
        gradients: list[torch.Tensor], reduced: torch.Tensor, ranks: int
    ) -> None:
        copy_in(gradients, reduced, ranks)
        round_to_half(reduced)

    _fsdp_collectives.foreach_reduce_scatter_copy_in = foreach_reduce_scatter_copy_in


def accumulation_in_half() -> None:
    """A gradient that another is added to."""

    def change(gradient: torch.Tensor, had: bool) -> None:
        if had:
            round_to_half(gradient)

    after_reductions(change)


def padding_in_norm() -> None:
    """The last rank counts what lies behind its shard, as large as its first element."""
    of_all = clip_grad._get_total_norm

    def padded(gradient: torch.Tensor) -> torch.Tensor:
        if not isinstance(gradient, DTensor) or not is_last():
            return gradient
        local = gradient.to_local()
        missing = math.ceil(gradient.shape[0] / gradient.device_mesh.size(0)) - local.shape[0]
        if missing <= 0 or not local.numel() or not bool(local[0].any()):
            return gradient
        DONE.touch()
        longer = torch.cat([local, *[local[:1]] * missing])
        return DTensor.from_local(
            longer,
            gradient.device_mesh,
            gradient.placements,
            run_check=False,
            shape=gradient.shape,
            stride=gradient.stride(),
        )

    def _get_total_norm(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        return of_all([padded(tensor) for tensor in tensors], *args, **kwargs)

    clip_grad._get_total_norm = _get_total_norm


FAULTS = {
    "gradient_off_by_1e-5": lambda: one_gradient_is_off_by(1e-5),
    "gradient_off_by_1e-7": lambda: one_gradient_is_off_by(1e-7),
    "gradient_off_by_1e-9": lambda: one_gradient_is_off_by(1e-9),
    "parameters_in_half": parameters_in_half,
    "reductions_in_half": reductions_in_half,
    "accumulation_in_half": accumulation_in_half,
    "padding_in_norm": padding_in_norm,
}


def apply() -> None:
    FAULTS[os.environ["FUZZSHARD_FAULT"]]()
