"""Gradients of shards are clipped whatever their norm is, where that should be an error."""

from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad


def apply() -> None:
    get_total_norm = clip_grad._get_total_norm

    def wrong(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None):
        tensors = list(tensors)
        raises = error_if_nonfinite and not any(isinstance(t, DTensor) for t in tensors)
        return get_total_norm(tensors, norm_type, raises, foreach)

    clip_grad._get_total_norm = wrong
