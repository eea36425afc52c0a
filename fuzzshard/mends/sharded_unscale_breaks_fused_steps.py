"""Fused Adam, AdamW and Adagrad fail after ``ShardedGradScaler.unscale_``.

It notes whether a gradient is infinite in a tensor of shape (1,)
(torch/distributed/fsdp/sharded_grad_scaler.py), where ``GradScaler`` has one of shape (). A fused
optimizer subtracts that from its counts of steps, which are of shape (), in place
(torch/optim/adam.py, ``_fused_adam``): an error. SGD has no such counts.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "ShardedGradScaler: fused Adam, AdamW and Adagrad raise an error after unscale_()"
COMPONENT = "FSDP1"
WEIGHT = "bug"
CONTRACT = Promise(
    ":meth:`unscale_` is optional, serving cases where you need to [...] modify or inspect "
    "gradients [...] between the backward pass(es) and :meth:`step`.",
    "torch.amp.GradScaler.unscale_",
)
SETUP = (
    "A model is trained in float16 under FSDP1 with AdamW(fused=True), and its gradients are "
    "clipped, so they are unscaled before the step."
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
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = ShardedGradScaler("cpu")
scaler.scale(model(torch.ones(2, 4)).sum()).backward()
scaler.unscale_(optimizer)
model.clip_grad_norm_(1.0)
scaler.step(optimizer)
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/140514",
        "open: the same error of AdamW under FSDP, whose cause was not found",
        "ShardedGradScaler fused AdamW found_inf shape broadcast error _foreach_sub_",
        "2026-12-01",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp.sharded_grad_scaler:ShardedGradScaler.unscale_",
        """
        found_inf = torch.full(
            (1,), 0.0, dtype=torch.float32, device=self._scale.device
        )
        """,
        """
        found_inf = torch.full(
            (), 0.0, dtype=torch.float32, device=self._scale.device
        )
        """,
    ),
)
