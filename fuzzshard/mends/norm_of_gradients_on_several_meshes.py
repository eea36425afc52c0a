"""``clip_grad_norm_`` raises where gradients are not all DTensors of one mesh.

``_get_total_norm`` (torch/nn/utils/clip_grad.py) puts gradients of one device and dtype in one
list, whatever they are, and stacks the norms of all. DTensor refuses a list or a stack of DTensors
and other tensors, and a stack of DTensors of several meshes. With ``foreach=False`` plain gradients
are then multiplied by a factor that is a DTensor, which is refused, too. The norm of all gradients
is the norm of the norms, each of which can be taken where its mesh communicates.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "clip_grad_norm_: raises when gradients are DTensors and plain tensors, or of several meshes"
)
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "The norm is computed over the norms of the individual gradients of all parameters, as if the "
    "norms of the individual gradients were concatenated into a single vector.",
    "torch.nn.utils.clip_grad_norm_",
)
SETUP = (
    "Some parameters are not sharded (ignored_params, a head outside of every group), or some are "
    "also tensor-parallel, or experts lie on a mesh of their own, and model.parameters() are "
    "clipped."
)
WORKAROUND = (
    "Call ``get_total_norm`` for the gradients of each mesh, take the norm of these norms' "
    "``full_tensor()``, and call ``clip_grads_with_norm_`` for each mesh."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
mesh = init_device_mesh("cpu", (2,))
fully_shard(model, mesh=mesh, ignored_params={*model[1].parameters()})
model(torch.ones(1, 4)).sum().backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/issues/180346",
        says="open: of several meshes",
        query="clip_grad_norm_ DTensor and plain tensor gradients mixed fully_shard",
        date="2026-11-29",
    ),
    Public(
        link="https://github.com/huggingface/accelerate/pull/4219",
        says="merged: accelerate clips plain gradients and DTensors apart",
        date="2026-11-29",
    ),
)
_CLIP_GRAD = "torch.nn.utils.clip_grad"
EDITS = (
    Edit(
        f"{_CLIP_GRAD}:_get_total_norm",
        """
        first_device = tensors[0].device
        """,
        """
        kinds = {}
        for tensor in tensors:
            kinds.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
        if len(kinds) > 1:
            totals = [_get_total_norm(kind, norm_type, False, foreach) for kind in kinds.values()]
            tensors = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in totals]
        first_device = tensors[0].device
        """,
    ),
    Edit(
        f"{_CLIP_GRAD}:_clip_grads_with_norm_",
        """
        max_norm = float(max_norm)
        """,
        """
        max_norm = float(max_norm)
        if len({getattr(grad, "device_mesh", None) for grad in grads}) > 1:
            if hasattr(total_norm, "full_tensor"):
                total_norm = total_norm.full_tensor()
            factor = torch.clamp(max_norm / (total_norm + 1e-6), max=1.0)
            for grad in grads:
                grad.mul_(factor.to(grad.device))
            return
        """,
    ),
)
