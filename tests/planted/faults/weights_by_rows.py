"""Ranks weight their gradients by the rows that the root was called with, as if all batches were
one.
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    root_pre_forward, foreach_reduce = (
        FSDPState._root_pre_forward,
        _fsdp_param_group.foreach_reduce,
    )
    rows = [1]

    def noting(self, module, args, kwargs):
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        rows[0] = tensors[0].shape[0] if tensors else 1
        return root_pre_forward(self, module, args, kwargs)

    def weighting(params, gradients, group, *args, **kwargs):
        if group is not None:
            total = torch.tensor([rows[0]])
            group.allreduce([total]).wait()
            for gradient in gradients:
                gradient.mul_(rows[0] * dist.get_world_size(group) / max(total.item(), 1))
        return foreach_reduce(params, gradients, group, *args, **kwargs)

    FSDPState._root_pre_forward = noting
    _fsdp_param_group.foreach_reduce = weighting
