"""A fused optimizer takes a step with infinite gradients that several ranks have.

``ShardedGradScaler.unscale_`` adds up over the ranks whether one of them has an infinite gradient
(torch/distributed/fsdp/sharded_grad_scaler.py). Fused operators leave out a step where they are
told 1.0 (``*found_inf_ptr == 1.0f`` in aten/src/ATen/native/FusedSGD.cpp and its like), and take
it for the 2.0 of two such ranks. Without ``fused``, ``GradScaler`` asks for any other number than
0. The largest is what all of them expect.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "ShardedGradScaler: a fused step is taken with gradients that are infinite on several ranks"
)
COMPONENT = "FSDP1"
WEIGHT = "bug"
CONTRACT = Promise(
    "If no inf/NaN gradients are found, invokes ``optimizer.step()`` using the unscaled gradients. "
    "Otherwise, ``optimizer.step()`` is skipped to avoid corrupting the params.",
    "torch.amp.GradScaler.step",
)
SETUP = (
    "Float16 training begins with a scale that overflows on all ranks, as the default mostly does; "
    "gradients are clipped, so unscaled first, and SGD has fused=True."
)
WORKAROUND = "Pass ``fused=False``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

dist.init_process_group("gloo")
model = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), fused=True)
scaler = ShardedGradScaler("cpu")
scaler.scale(model(torch.full((2, 4), torch.inf)).sum()).backward()
scaler.unscale_(optimizer)
scaler.step(optimizer)
assert all(each.isfinite().all() for each in model.parameters())
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/115710",
        "near, merged: what was added up was copied too early, with offloaded gradients",
        "ShardedGradScaler found_inf all_reduce sum fused optimizer step not skipped inf on ranks",
        "2026-12-01",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp.sharded_grad_scaler:ShardedGradScaler.unscale_",
        "found_inf_on_device, async_op=True, group=self.process_group",
        "found_inf_on_device, dist.ReduceOp.MAX, async_op=True, group=self.process_group",
    ),
    Edit(
        "torch.distributed.fsdp.sharded_grad_scaler:ShardedGradScaler.unscale_",
        "dist.all_reduce(found_inf, async_op=True, group=self.process_group)",
        "dist.all_reduce(\n"
        "    found_inf, dist.ReduceOp.MAX, async_op=True, group=self.process_group\n"
        ")",
    ),
)
