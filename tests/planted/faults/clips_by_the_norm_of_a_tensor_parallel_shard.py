"""The total norm of gradients lacks what other ranks of the tensor-parallel axis have."""

import torch
from torch.distributed.tensor import DTensor


def apply() -> None:
    get_total_norm = torch.nn.utils.get_total_norm

    def wrong(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None):
        tensors = list(tensors)
        norm = get_total_norm(tensors, norm_type, error_if_nonfinite, foreach)
        meshes = [t.device_mesh for t in tensors if isinstance(t, DTensor)]
        return norm / 2 if any("tp" in (m.mesh_dim_names or ()) for m in meshes) else norm

    torch.nn.utils.get_total_norm = wrong
