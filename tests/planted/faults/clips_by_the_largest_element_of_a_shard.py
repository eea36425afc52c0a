"""Every rank clips sharded gradients by the largest element of its own shards."""

import math

from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad


def apply() -> None:
    total_norm = clip_grad._get_total_norm

    def wrong(tensors, norm_type=2.0, *args, **kwargs):
        if float(norm_type) == math.inf:
            tensors = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
        return total_norm(tensors, norm_type, *args, **kwargs)

    clip_grad._get_total_norm = wrong
