"""A fused optimizer under ``ShardedGradScaler`` skips a step on the ranks alone that overflowed.

``ShardedGradScaler.unscale_`` reduces over its process group whether a gradient is infinite. For
optimizers that scale by themselves, as all with ``fused=True`` do, ``GradScaler.step`` asks
``_check_inf_per_device`` in its place (torch/amp/grad_scaler.py), which ``ShardedGradScaler`` does
not override. So the ranks whose shards are finite step, the others do not, and ``update()`` leaves
them with different scales. ``unscale_()`` before the step hides it.
"""

from typing import Any

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = "ShardedGradScaler: a fused optimizer skips a step on one rank and takes it on the others"
COMPONENT = "FSDP1"
WEIGHT = "bug"
CONTRACT = Promise(
    "Sync inf/nan for scaled gradient tensors on any torch.device (where tensors are placed) across "
    "nodes",
    "ShardedGradScaler",
)
SETUP = (
    "A model is trained in float16 under FSDP1 with AdamW(fused=True), and a gradient overflows in "
    "the shard of one rank."
)
WORKAROUND = "Call ``scaler.unscale_(optimizer)`` before ``scaler.step(optimizer)``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

dist.init_process_group("gloo")
model = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
scaler = ShardedGradScaler("cpu", init_scale=1024.0, growth_interval=1)
scaler.scale(model(torch.ones(2, 4)).sum()).backward()
if dist.get_rank() == 0:  # its shard overflows
    next(model.parameters()).grad[0] = float("inf")
scaler.step(optimizer)
scaler.update()
assert scaler.get_scale() == 512.0, f"rank {dist.get_rank()}: {scaler.get_scale()}"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/115710",
        "near, merged: what unscale_() reduced was copied too early, with offloaded gradients",
        query="ShardedGradScaler fused optimizer found_inf not synchronized across ranks FSDP "
        "_check_inf_per_device",
        date="2026-11-30",
    ),
)


def apply(patch: Patch) -> None:
    """Reduces what a fused optimizer is told."""
    import torch.distributed as dist
    from torch.amp.grad_scaler import GradScaler
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    check = GradScaler._check_inf_per_device

    def check_on_all_ranks(self: GradScaler, optimizer: Any) -> dict[str, Any]:
        found = check(self, optimizer)
        if isinstance(self, ShardedGradScaler):
            for each in found.values():
                reduced = each.to(self._device)
                dist.all_reduce(reduced, dist.ReduceOp.MAX, group=self.process_group)
                each.copy_(reduced)
        return found

    patch(GradScaler, "_check_inf_per_device", check_on_all_ranks)
