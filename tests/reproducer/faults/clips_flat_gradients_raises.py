"""FSDP1's own ``clip_grad_norm_`` raises."""

from torch.distributed.fsdp import FullyShardedDataParallel


def apply():
    def clip_grad_norm_(self, max_norm, norm_type=2.0):
        raise RuntimeError("planted: nothing is clipped")

    FullyShardedDataParallel.clip_grad_norm_ = clip_grad_norm_
