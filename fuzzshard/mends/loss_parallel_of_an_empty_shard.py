"""``loss_parallel()`` raises or hangs where a rank has none of the classes.

``Shard`` leaves ranks nothing where ``torch.chunk`` gives fewer pieces than there are ranks: five
classes on four ranks, for one. Such a rank skips the all-reduce of the maximum that the others
wait for (``_log_softmax`` in ``torch/distributed/tensor/parallel/loss.py``), so that its next
all-reduce meets another one; and it takes index 0 of nothing for the labels that it does not
have, in ``_nll_loss_forward`` ("index 0 is out of bounds for dimension 1 with size 0") and in the
backward.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "loss_parallel: IndexError or a hang when there are too few classes for all ranks"
COMPONENT = "DTensor"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Input logits. Assumed to be sharded on the class dimension",
    "loss_parallel",
)
SETUP = "A classifier of few classes on more tensor-parallel ranks, or one that is tried small."
WORKAROUND = "Add classes that no label names, with logits that are far below the others."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        query="loss_parallel empty shard uneven classes index 0 is out of bounds for dimension 1 "
        "with size 0",
        date="2026-11-29",
    ),
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 4 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (4,))
logits = distribute_tensor(torch.ones(2, 5, requires_grad=True), mesh, [Shard(1)])
with loss_parallel():
    loss = nn.functional.cross_entropy(logits, torch.tensor([0, 4]))
    loss.backward()
torch.testing.assert_close(loss.full_tensor(), torch.tensor(5.0).log())
dist.destroy_process_group()
"""
EDITS = (
    Edit(
        "torch.distributed.tensor.parallel.loss:_log_softmax",
        """
        if x.numel() == 0:
            shifted = x
        else:
            x_max = torch.amax(x, dim, keepdim=True)
            x_max = funcol.all_reduce(
                x_max, reduceOp=c10d.ReduceOp.MAX.name, group=(mesh, mesh_dim)
            )
            shifted = x - x_max
        """,
        """
        lowest = x.sum(dim, keepdim=True).fill_(float("-inf"))
        x_max = torch.amax(torch.cat([lowest, x], dim), dim, keepdim=True)
        x_max = funcol.all_reduce(
            x_max, reduceOp=c10d.ReduceOp.MAX.name, group=(mesh, mesh_dim)
        )
        shifted = x - x_max
        """,
    ),
    Edit(
        "torch.distributed.tensor.parallel.loss:_nll_loss_forward",
        "result_partial = torch.gather(x, channel_dim, safe_target_partial_)",
        """
        held = x if x.shape[channel_dim] else x.new_zeros(safe_target_partial_.shape)
        result_partial = torch.gather(held, channel_dim, safe_target_partial_)
        """,
    ),
    Edit(
        "torch.distributed.tensor.parallel.loss:_nll_loss_and_log_softmax_backward",
        "grad_input = torch.zeros_like(x)",
        """
        grad_input = torch.zeros_like(x)
        if x.shape[channel_dim] == 0:
            return grad_input
        """,
    ),
)
