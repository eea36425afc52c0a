"""What ``fully_shard`` holds besides what is registered: the one place that knows its private names."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule


def param_groups(model: nn.Module) -> list[Any]:
    """The ``FSDPParamGroup`` s below ``model``; a module had one at most before torch 2.12."""
    found: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            several = hasattr(state, "_fsdp_param_groups")
            for group in state._fsdp_param_groups if several else [state._fsdp_param_group]:
                if group is not None:
                    found[id(group)] = group
    return list(found.values())


def unreduced_gradient(fsdp_param: Any) -> torch.Tensor | None:
    """What backwards have left on this rank to be reduced later.

    ``unsharded_accumulated_grad`` where it adds up in another dtype than it is computed in, else ``.grad`` of
    the unsharded parameter. Both at once is a mistake, which their sum shows.
    """
    unsharded = getattr(fsdp_param, "_unsharded_param", None)
    computed: torch.Tensor | None = None if unsharded is None else unsharded.grad
    accumulated: torch.Tensor | None = fsdp_param.unsharded_accumulated_grad
    if accumulated is None or computed is None:
        return computed if accumulated is None else accumulated
    return accumulated + computed


def unsharded_elements(fsdp_param: Any) -> int:
    """How many elements of memory the unsharded parameter takes now; its storage is freed when sharded."""
    tensors = [*fsdp_param.all_gather_outputs, *fsdp_param._unsharded_inner_tensors]
    return sum(tensor.untyped_storage().size() // tensor.itemsize for tensor in tensors)
