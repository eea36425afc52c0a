"""Ranks that have joined all-reduce buckets that the others skip.

With ``skip_all_reduce_unused_params`` the reducer does not all-reduce a bucket whose parameters
are all unused (``torch/csrc/distributed/c10d/reducer.cpp``, ``should_skip_all_reduce_bucket``).
``_match_all_reduce_for_bwd_pass`` (``torch/nn/parallel/distributed.py``) goes through all buckets
on a rank that has joined. With ``static_graph``, which keeps what is unused, or where all
parameters of a bucket are frozen, collectives of ranks no longer match: gradients are added to
those of other buckets, or a rank hangs or dies. The mend takes frozen parameters for the unused
ones, and with ``static_graph`` those that have no gradient, as the reducer does not tell them.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DDP: join() mismatches collectives with static_graph and skip_all_reduce_unused_params"
COMPONENT = "DDP"
WEIGHT = "exotic"
CONTRACT = Promise(
    "This will ensure each collective call has a corresponding call by already-joined DDP "
    "processes, preventing hangs or errors that would otherwise happen when training with uneven "
    "inputs across processes.",
    "torch.nn.parallel.DistributedDataParallel.join",
)
SETUP = (
    "DistributedDataParallel(static_graph=True, skip_all_reduce_unused_params=True) within "
    "join(), where one rank has more inputs than another, and all parameters of a bucket are "
    "unused."
)
WORKAROUND = "Leave skip_all_reduce_unused_params out."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=timedelta(seconds=10))
rank = dist.get_rank()
model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
model.forward = lambda x: nn.Sequential.forward(model[:1], x)
ddp = DistributedDataParallel(
    model, static_graph=True, skip_all_reduce_unused_params=True, bucket_cap_mb=1e-6
)
with ddp.join():
    for _ in range(3 if rank == 0 else 2):
        ddp(torch.ones(1, 1)).sum().backward()
dist.destroy_process_group()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="DDP join skip_all_reduce_unused_params static_graph uneven inputs collective "
        "mismatch hang",
        date="2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.nn.parallel.distributed:DistributedDataParallel._match_all_reduce_for_bwd_pass",
        "grad_buckets = self.reducer._get_zeros_like_grad_buckets()",
        """
        grad_buckets = self.reducer._get_zeros_like_grad_buckets()
        if self.skip_all_reduce_unused_params:
            grad_buckets = [
                bucket
                for bucket in grad_buckets
                if any(
                    p.grad is not None if self.static_graph else p.requires_grad
                    for p in bucket.parameters()
                )
            ]
        """,
    ),
)
