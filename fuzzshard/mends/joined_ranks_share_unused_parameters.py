"""Ranks that have joined share which parameters are unused, and a static graph does not.

``_DDPJoinHook.main_hook`` (``torch/nn/parallel/distributed.py``) adds up the map of used
parameters where ``find_unused_parameters`` is on. With ``static_graph`` the reducer of the ranks
that still have inputs does so in no iteration but the first
(``torch/csrc/distributed/c10d/reducer.cpp``, ``dynamic_graph_find_unused``), so that the
collectives of ranks no longer match: what comes next is added up with the map, hangs or fails.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DDP: join() mismatches collectives with static_graph and find_unused_parameters"
COMPONENT = "DDP"
WEIGHT = "bug"
CONTRACT = Promise(
    "This will ensure each collective call has a corresponding call by already-joined DDP "
    "processes, preventing hangs or errors that would otherwise happen when training with uneven "
    "inputs across processes.",
    "torch.nn.parallel.DistributedDataParallel.join",
)
SETUP = (
    "DistributedDataParallel(static_graph=True, find_unused_parameters=True) within join(), where "
    "one rank has more inputs than another."
)
WORKAROUND = "Leave find_unused_parameters out: a static graph needs none."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=timedelta(seconds=10))
rank = dist.get_rank()
ddp = DistributedDataParallel(
    nn.Linear(1, 1), static_graph=True, find_unused_parameters=True
)
with ddp.join():
    for _ in range(3 if rank == 0 else 2):
        ddp(torch.ones(1, 1)).sum().backward()
dist.destroy_process_group()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="DDP join static_graph find_unused_parameters hang uneven inputs "
        "_match_unused_params_allreduce",
        date="2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.nn.parallel.distributed:_DDPJoinHook.main_hook",
        "if ddp.find_unused_parameters:",
        "if ddp.find_unused_parameters and not ddp.static_graph:",
    ),
)
