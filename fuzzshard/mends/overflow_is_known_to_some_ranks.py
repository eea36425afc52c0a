"""A ``GradScaler`` of DTensors looks for overflows along the axes that shard the first gradient.

Unscaling gradients says on each rank whether something in its shards is not finite. Then
``found_inf_reduce_handler`` (torch/distributed/tensor/_dispatch.py) takes the largest over the
ranks, along those axes of the mesh of the first gradient on which that one is not replicated. The
others may lie on another mesh, as those of tensor-parallel modules under ``fully_shard`` do, or be
sharded where the first is not. If one of these overflows in a shard of one rank, that rank skips
the step and halves its scale, and the others make the step. Each kind of gradient in the list has
to be asked for.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "GradScaler: some ranks skip a step and others make it when a tensor-parallel gradient overflows"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "If no inf/NaN gradients are found, invokes ``optimizer.step()`` using the unscaled gradients. "
    "Otherwise, ``optimizer.step()`` is skipped to avoid corrupting the params.",
    "torch.amp.GradScaler.step",
)
SETUP = (
    "A model with tensor-parallel blocks under ``fully_shard`` begins with a module that is not "
    "tensor-parallel, and float16 training with a ``GradScaler`` overflows in a block."
)
WORKAROUND = (
    "Take the largest of what ``scaler.unscale_(optimizer)`` has found over all ranks, or give "
    "tensor-parallel parameters an optimizer of their own."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
parallelize_module(model[1], mesh["tp"], ColwiseParallel())
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
scaler.scale(model(torch.ones(1, 4)).sum()).backward()
if dist.get_rank() == 0:  # as a backward does that overflows there
    model[1].weight.grad.to_local()[0, 0] = float("inf")
scaler.step(optimizer)
scaler.update()
assert scaler.get_scale() == 2.0
dist.destroy_process_group()
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/132816",
        "closed, brought the reduction",
        "GradScaler found_inf DTensor tensor parallel ranks disagree "
        "_amp_foreach_non_finite_check_and_unscale_ found_inf_reduce_handler mesh",
        "2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.tensor._dispatch:found_inf_reduce_handler",
        """
        target_tensor.copy_(found_inf)
        """,
        """
        target_tensor.copy_(found_inf)
        kinds = dict.fromkeys((grad.device_mesh, grad.placements) for grad in args[0])
        for mesh, grad_placements in [*kinds][1:]:
            found_inf_placements = [
                placement if isinstance(placement, Replicate) else Partial("max")
                for placement in grad_placements
            ]
            spec = DTensorSpec(mesh, tuple(found_inf_placements), tensor_meta=spec.tensor_meta)
            found_inf_dtensor = dtensor.DTensor(target_tensor, spec, requires_grad=False)
            target_tensor.copy_(found_inf_dtensor.full_tensor())
        """,
    ),
)
