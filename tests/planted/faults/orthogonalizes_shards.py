"""Muon orthogonalizes every shard of a matrix, in place of the matrix."""

import torch
from torch.distributed.tensor import DTensor


def apply() -> None:
    module = torch.optim._muon
    orthogonal = module._zeropower_via_newtonschulz

    def wrong(grad, *options):
        if not isinstance(grad, DTensor):
            return orthogonal(grad, *options)
        return DTensor.from_local(
            orthogonal(grad.to_local(), *options),
            grad.device_mesh,
            grad.placements,
            shape=grad.shape,
            stride=grad.stride(),
        )

    module._zeropower_via_newtonschulz = wrong
