"""Optimizers with foreach or fused, ``clip_grad_value_`` and ``GradScaler`` raise on mixed lists.

They hand lists of tensors to one operator, which ``_group_tensors_by_device_and_dtype``
(torch/utils/_foreach_utils.py), ``Optimizer.zero_grad`` and ``GradScaler._unscale_grads_`` make:
one for each device and dtype, whether tensors are DTensors or not, and on whichever mesh these lie.
DTensor refuses a list of DTensors and other tensors. It takes scalars for replicated on one of
several meshes, which other operators of a step refuse. On CUDA foreach is the default, so there the
optimizer of ``model.parameters()`` raises. Tensors of each mesh can have a list of their own.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "torch.optim: foreach and fused raise when some parameters are DTensors and some are not"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "If unspecified by the user (so foreach is None), we will try to use foreach over the for-loop "
    "implementation on CUDA, since it is usually significantly more performant.",
    "torch.optim.AdamW, foreach",
)
SETUP = (
    "Some parameters are not sharded (ignored_params, a head outside of every group), and one "
    "optimizer gets model.parameters(), on CUDA or with foreach=True or fused=True."
)
WORKAROUND = "Pass ``foreach=False``, or give plain parameters an optimizer of their own."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
mesh = init_device_mesh("cpu", (2,))
fully_shard(model, mesh=mesh, ignored_params={*model[1].parameters()})
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/issues/183207",
        says="open: with foreach",
        query="optimizer foreach fused mixed torch.Tensor and DTensor fully_shard ignored_params",
        date="2026-11-29",
    ),
    Public(
        link="https://github.com/NVIDIA-NeMo/Automodel/pull/3860",
        says="open: Automodel splits the groups of optimizers",
        date="2026-11-29",
    ),
)
EDITS = (
    Edit(
        "torch.utils._foreach_utils:_group_tensors_by_device_and_dtype",
        """
        return torch._C._group_tensors_by_device_and_dtype(tensorlistlist, with_indices)
        """,
        """
        meshes = [getattr(tensor, "device_mesh", None) for tensor in tensorlistlist[0]]
        if len(set(meshes)) <= 1:
            return torch._C._group_tensors_by_device_and_dtype(tensorlistlist, with_indices)

        class Kind(tuple):  # of a mesh: keys of two meshes are two
            __eq__, __hash__ = object.__eq__, object.__hash__

        grouped = {}
        for mesh in dict.fromkeys(meshes):
            places = [i for i, each in enumerate(meshes) if each == mesh]
            lists = [[each[i] for i in places] if each else each for each in tensorlistlist]
            kinds = torch._C._group_tensors_by_device_and_dtype(lists, with_indices)
            for key, (found, indices) in kinds.items():
                grouped[Kind(key)] = found, [places[i] for i in indices]
        return grouped
        """,
    ),
    Edit(
        "torch.optim.optimizer:Optimizer.zero_grad",
        """
        p.grad.dtype
        """,
        """
        (p.grad.dtype, getattr(p.grad, "device_mesh", None))
        """,
    ),
    Edit(
        "torch.amp.grad_scaler:GradScaler._unscale_grads_",
        """
        to_unscale.dtype
        """,
        """
        (to_unscale.dtype, getattr(to_unscale, "device_mesh", None))
        """,
    ),
)
