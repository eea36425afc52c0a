"""Ranks that have joined all-reduce buckets that the others skip.

With ``skip_all_reduce_unused_params`` the reducer does not all-reduce a bucket whose parameters
are all unused (``torch/csrc/distributed/c10d/reducer.cpp``, ``should_skip_all_reduce_bucket``).
``_match_all_reduce_for_bwd_pass`` (``torch/nn/parallel/distributed.py``) goes through all buckets
on a rank that has joined, so collectives of ranks no longer match: gradients are added to those of
other buckets, or a rank hangs or dies. The reducer does not tell what is unused. The mend searches
as the reducer does; with ``static_graph``, which keeps what was unused in the first iteration, it
takes the parameters that have no gradient.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DDP: join() mismatches collectives with skip_all_reduce_unused_params"
COMPONENT = "DDP"
WEIGHT = "exotic"
CONTRACT = Promise(
    "This will ensure each collective call has a corresponding call by already-joined DDP "
    "processes, preventing hangs or errors that would otherwise happen when training with uneven "
    "inputs across processes.",
    "torch.nn.parallel.DistributedDataParallel.join",
)
SETUP = (
    "DistributedDataParallel(find_unused_parameters=True, skip_all_reduce_unused_params=True) "
    "within join(), where one rank has more inputs than another, and all parameters of a bucket "
    "are unused."
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
    model,
    find_unused_parameters=True,
    skip_all_reduce_unused_params=True,
    bucket_cap_mb=1e-6,
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
_DDP = "torch.nn.parallel.distributed:DistributedDataParallel"
EDITS = (
    Edit(
        f"{_DDP}._post_forward",
        """
        if self._check_sync_bufs_post_fwd():
        """,
        """
        if self.skip_all_reduce_unused_params and torch.is_grad_enabled():
            nodes, reached = [t.grad_fn for t in _find_tensors(output) if t.grad_fn], set()
            while nodes:  # as the reducer searches
                later = {node for node, _ in nodes.pop().next_functions if node} - reached
                nodes.extend(later)
                reached |= later
            self._used = {getattr(node, "variable", None) for node in reached}
        if self._check_sync_bufs_post_fwd():
        """,
    ),
    Edit(
        f"{_DDP}._match_all_reduce_for_bwd_pass",
        "grad_buckets = self.reducer._get_zeros_like_grad_buckets()",
        """
        grad_buckets = self.reducer._get_zeros_like_grad_buckets()
        if self.skip_all_reduce_unused_params:
            grad_buckets = [
                bucket
                for bucket in grad_buckets
                if any(
                    p.grad is not None if self.static_graph else p in self._used
                    for p in bucket.parameters()
                )
            ]
        """,
    ),
)
