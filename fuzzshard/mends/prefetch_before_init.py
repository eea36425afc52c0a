"""A prefetch unshards a module whose FSDP root has not run.

``FSDPParamGroup._prefetch_unshard`` (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py)
gathers its target with the streams that the first forward of the target's FSDP root makes, and
with dtypes that it determines. Where the target belongs to another root that has not run yet,
the dtypes are missing, and the streams as well unless ``share_comm_ctx`` brought those of a third
root: an AttributeError. ``FSDPModule.unshard`` of the same module works, as it calls ``lazy_init``
of the group and gathers on the current stream.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "Explicit prefetching: AttributeError when the FSDP root of the target has not run yet"
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Sets the FSDP modules for which this FSDP module should explicitly prefetch all-gathers in "
    "forward.",
    "FSDPModule.set_modules_to_forward_prefetch",
)
SETUP = (
    "Two models are wrapped, each with a root of its own (text encoder and denoiser, generator "
    "and critic), and the last block of the first prefetches the first block of the second."
)
WORKAROUND = "Set the prefetch after the target's root has run once."
EXAMPLE = """\
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (2,))
encoder = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
denoiser = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
for model in (encoder, denoiser):
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
encoder[-1].set_modules_to_forward_prefetch([denoiser[0]])
denoiser(encoder(torch.ones(1, 4))).sum().backward()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="none found",
        query=(
            "FSDPCommContext object has no attribute all_gather_copy_in_stream "
            "set_modules_to_forward_prefetch"
        ),
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup._prefetch_unshard",
        """
        async_op = target_fsdp_param_group.unshard_async_op
        """,
        """
        if not all(hasattr(p, "param_dtype") for p in target_fsdp_param_group.fsdp_params):
            target_fsdp_param_group.lazy_init()
        async_op = target_fsdp_param_group.unshard_async_op
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPCommContext.get_all_gather_streams",
        """
        if not async_op and training_state in (
        """,
        """
        if hasattr(self, "all_gather_stream") and not async_op and training_state in (
        """,
    ),
)
