"""Ranks that have joined step with the gradients of their own last iteration.

``Join([ddp, zero])`` calls the hooks of both for every iteration of the ranks that still have
inputs. ``_DDPJoinHook`` (``torch/nn/parallel/distributed.py``) takes part in the all-reduces and
drops what they give. ``_ZeROJoinHook`` (``torch/distributed/optim/zero_redundancy_optimizer.py``)
then steps with what ``.grad`` holds, and broadcasts the parameters of this rank to all others. Its
docstring says "Gradients must be properly set before this hook is called", and nobody sets them.
torch's own test puts a hook of its own in between.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DDP: Join([ddp, zero]) steps with stale gradients once a rank has no more inputs"
COMPONENT = "DDP"
WEIGHT = "bug"
CONTRACT = Promise(
    "These hooks should shadow the collective communications of non-joined processes to prevent "
    "hanging and erroring and to ensure algorithmic correctness.",
    "torch.distributed.algorithms.join.Join",
)
SETUP = (
    "DDP and ZeroRedundancyOptimizer within Join([model, optim]), as in its docstring and in the "
    "tutorial on uneven inputs, where one rank has more inputs than another. Nothing is raised."
)
WORKAROUND = "Give all ranks as many inputs, or leave ZeroRedundancyOptimizer out."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Linear(1, 1, bias=False)
nn.init.ones_(model.weight)
ddp = DistributedDataParallel(model)
optim = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.5)
with Join([ddp, optim]):
    for i in range(1 if rank == 0 else 2):
        optim.zero_grad()
        ddp(torch.full((1, 1), 1.0 + 3 * i)).sum().backward()
        optim.step()
# gradients are 1 on both ranks, then 4 on one of two: their means are 1 and 2
torch.testing.assert_close(model.weight.item(), 1.0 - 0.5 * 1 - 0.5 * 2)
dist.destroy_process_group()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/60757",
        "near: the pull request that added the hook",
        query="Join context manager ZeroRedundancyOptimizer DDP uneven inputs joined process stale "
        "gradients join_hook",
        date="2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.nn.parallel.distributed:DistributedDataParallel._match_all_reduce_for_bwd_pass",
        """
        for work in comm_work:
            work.wait()
        """,
        """
        for bucket, work in zip(grad_buckets, comm_work):
            reduced = work.wait()
            bucket.buffer().copy_(reduced if isinstance(reduced, torch.Tensor) else reduced[0])
            for p, gradient in zip(bucket.parameters(), bucket.gradients()):
                if p.grad is not None:
                    p.grad.copy_(gradient)
                elif gradient.any():
                    p.grad = gradient.clone()
        """,
    ),
)
