"""FSDP1 adds a backward's gradients to those that were cleared between its forward and it.

``FlatParamHandle._reset_flat_param_grad_info_if_needed`` (``torch/distributed/fsdp/_flat_param.py``)
lets go of the flat gradient where *all* parameters of a unit have the gradient None. Where some of
them have one yet, the others' parts are cleared by ``_writeback_orig_params``, but not where the
parameters stay gathered between forward and backward, as with ``SHARD_GRAD_OP``: it skips
gradients then. What an optimizer of some of the parameters clears there stays in the flat
gradient, and the backward adds to it. The parts of parameters whose gradients are None are to be
cleared in the first of these places as well.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1: gradients that zero_grad() clears between forward and backward are added again"
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Reset the gradients of all optimized :class:`torch.Tensor` s.",
    "torch.optim.Optimizer.zero_grad",
)
SETUP = (
    "``SHARD_GRAD_OP`` with ``use_orig_params``, and an optimizer that has a part of the "
    "parameters, as with several optimizers of which each has its own ``zero_grad()``. It is "
    "called after the forward, right before ``loss.backward()``: the model trains with sums of "
    "gradients, and nothing says so."
)
WORKAROUND = "Call ``zero_grad()`` before the forward."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

mesh = init_device_mesh("cpu", (2,))
model = FullyShardedDataParallel(
    nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2)),
    device_mesh=mesh,
    sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
    use_orig_params=True,
    device_id=torch.device("cpu"),
)
optimizer = torch.optim.SGD(model.module[0].parameters(), lr=0.1)
gradients = []
for _ in range(2):  # twice the same
    loss = model(torch.ones(1, 2)).sum()
    optimizer.zero_grad()
    loss.backward()
    with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
        gradients.append(model.module[0].weight.grad.clone())
assert torch.equal(*gradients), gradients
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/98250",
        says="near: keeps the views of ``SHARD_GRAD_OP`` between forward and backward",
        query="FSDP use_orig_params SHARD_GRAD_OP optimizer.zero_grad between forward and backward "
        "gradients not zeroed accumulate",
        date="2026-11-28",
    ),
    Public(
        query="FSDP multiple optimizers zero_grad set_to_none flat_param.grad stale gradient "
        "use_orig_params no reshard after forward",
        date="2026-11-28",
    ),
    Public(
        link="https://github.com/pytorch/pytorch/pull/84911",
        says="near: the review says of some None gradients that ``_writeback_orig_params`` "
        "handles them",
        query="_reset_flat_param_grad_info_if_needed all_grad_none partial None gradients "
        "FullyShardedDataParallel",
        date="2026-11-28",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._flat_param:FlatParamHandle._reset_flat_param_grad_info_if_needed",
        """
        if all_grad_none:
            flat_param.grad = None
        """,
        """
        if all_grad_none:
            flat_param.grad = None
        elif flat_param.grad is not None and (
            flat_param.grad.size() != flat_param._unpadded_unsharded_size
            or hasattr(flat_param.grad, "_is_reduced")
        ):
            infos = flat_param._shard_param_infos
            for i, (param, info) in enumerate(zip(flat_param._params, infos)):
                if param.grad is None and info.in_shard:
                    size, start = torch.Size([info.numel_in_shard]), info.offset_in_shard
                    self._writeback_tensor(None, flat_param.grad, i, size, start, False)
        """,
    ),
)
