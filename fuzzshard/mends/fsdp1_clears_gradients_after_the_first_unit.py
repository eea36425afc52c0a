"""FSDP1 clears the gradient of the unit whose output the model returns too late.

With ``use_orig_params`` the gradient of a unit is ``flat_param.grad``, and ``zero_grad()`` sets
those of its parameters to None. Only the root tells the units of that, in its forward and in its
``_pre_backward_hook`` (``torch/distributed/fsdp/_runtime_utils.py``). Where the root returns the
output of a unit as it is, both have hooks on the same tensor, and the unit's is the first: it
puts the old gradient aside, to add it to the new one. With ``SHARD_GRAD_OP`` nothing else notices,
as no parameter is resharded in between. Each unit must look before it puts its gradient aside.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1: zero_grad() between forward and backward leaves the last unit its old gradient"
COMPONENT = "FSDP1"
WEIGHT = "bug"
CONTRACT = Promise(
    "Reset the gradients of all optimized :class:`torch.Tensor` s.",
    "torch.optim.Optimizer.zero_grad",
)
SETUP = (
    "The loop of PyTorch's tutorials, ``loss = loss_fn(model(x), y); optimizer.zero_grad(); "
    "loss.backward(); optimizer.step()``, with SHARD_GRAD_OP and ``use_orig_params=True``, where "
    "the model's output is that of its last wrapped layer: a Sequential, or a wrapped head. The "
    "gradient of that layer is the sum of all steps so far."
)
WORKAROUND = "Call ``zero_grad()`` before the forward, or after ``step()``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

dist.init_process_group("gloo")
model = FullyShardedDataParallel(
    nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)),
    auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
    sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
    use_orig_params=True,
    device_id=torch.device("cpu"),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
gradients = []
for step in range(3):
    loss = model(torch.ones(1, 1)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
        gradients.append([p.grad.item() for p in model.parameters()])
first = gradients[0]
assert gradients == [first] * 3, f"{gradients=}, though nothing differs between the steps"
dist.destroy_process_group()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/105371",
        "near: closed, the same strategies and function, for requires_grad",
        "FSDP use_orig_params zero_grad between forward and backward stale gradient accumulated "
        "SHARD_GRAD_OP",
        "2026-11-27",
    ),
    Public(
        says="none found",
        query="FullyShardedDataParallel optimizer.zero_grad set_to_none after forward before "
        "backward wrong gradients use_orig_params",
        date="2026-11-27",
    ),
    Public(
        says="none found",
        query="FSDP SHARD_GRAD_OP different loss convergence than FULL_SHARD use_orig_params=True "
        "gradients accumulate across steps",
        date="2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._runtime_utils:_pre_backward_hook",
        """
        handle.prepare_gradient_for_backward()
        """,
        """
        _reset_flat_param_grad_info_if_needed(handle)
        handle.prepare_gradient_for_backward()
        """,
    ),
)
