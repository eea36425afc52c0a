"""The unsharded parameters are inference tensors if the first forward runs in inference mode.

``FSDPParam.init_all_gather_outputs`` (``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``)
allocates what an all-gather writes to, and ``init_unsharded_param`` makes the unsharded parameter
of it. Both do so once, in the first forward, and every later forward uses the same tensors. Under
``torch.inference_mode()`` they are inference tensors, which no later forward with gradients can
use: its all-gather may not write to them, or autograd may not save them. Only allocations decide
that, so these must leave the mode.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard: training raises when the first forward ran under inference_mode"
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "FSDP2 should be able to run under inference mode", "pytorch PR 197327, description"
)
SETUP = (
    "A training script evaluates under ``torch.inference_mode()`` before its first step: a "
    "baseline, or the check of the validation loop that trainers make. The first training step "
    "raises. After a first training step, the same evaluation does no harm."
)
WORKAROUND = "Use ``torch.no_grad()`` for forwards that come before the first training step."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
with torch.inference_mode():
    model(torch.ones(1, 4))
model(torch.ones(1, 4)).sum().backward()
dist.destroy_process_group()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/197327",
        "near: merged in September 2026; unsharding in inference mode raised",
        "FSDP2 fully_shard first forward under inference_mode Inplace update to inference tensor",
        "2026-11-25",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/113203",
        "near: closed; the same of FSDP1",
        "FSDP2 fully_shard torch.inference_mode then training inference tensors cannot be saved",
        "2026-11-25",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.init_all_gather_outputs",
        """
        self.all_gather_outputs = [
            torch.empty(torch.Size([numel * world_size]), dtype=dtype, device=device)
            for numel, dtype in zip(all_gather_input_numels, all_gather_input_dtypes)
        ]
        """,
        """
        with torch.inference_mode(False):
            self.all_gather_outputs = [
                torch.empty(torch.Size([numel * world_size]), dtype=dtype, device=device)
                for numel, dtype in zip(all_gather_input_numels, all_gather_input_dtypes)
            ]
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.wait_for_unshard",
        """
        fsdp_param.init_unsharded_param()
        """,
        """
        with torch.inference_mode(False):
            fsdp_param.init_unsharded_param()
        """,
    ),
)
