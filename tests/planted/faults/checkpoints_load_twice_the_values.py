"""Code that DDP and fully_shard share: ``dcp.load`` doubles whatever it loads."""

import torch
import torch.distributed.checkpoint as dcp
from torch.utils._pytree import tree_leaves


def apply() -> None:
    load = dcp.load

    def wrong(state_dict, **options):
        load(state_dict, **options)
        for tensor in tree_leaves(state_dict):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                tensor.mul_(2)

    dcp.load = wrong
