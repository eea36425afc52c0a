"""Whether an unused parameter gets a gradient of zeros goes by whether it was frozen when its
group last ran.

With ``set_reduce_scatter_unused_params`` the end of a backward reduces zeros for trainable
parameters that got no gradient. ``FSDPParamGroup._get_unsharded_grad_to_reduce``
(torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py) asks the unsharded parameter for its
``requires_grad``, which is a copy from the time at which the group was last unsharded; what users
freeze and thaw is the sharded one. A group that does not run in this iteration so gives what is
frozen by now a gradient of zeros, by which weight decay moves it, and what is trainable by now
none. The check a few lines above, ``_validate_unused_param_grad_dtypes``, asks the sharded
parameter.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "set_reduce_scatter_unused_params: frozen parameters get zeros when their group did not run"
)
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Sets whether to include zero gradients for parameters that did not receive a gradient in "
    "backward",
    "FSDPModule.set_reduce_scatter_unused_params",
)
SETUP = (
    "Experts or adapters are frozen and thawed in turn, and zeros are reduced for what an "
    "iteration does not use: weight decay moves what is frozen by then."
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1))
adapter, head = model
fully_shard(head, mesh=mesh)
fully_shard(model, mesh=mesh)  # the adapter's group
model.set_reduce_scatter_unused_params(True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
x = torch.ones(1, 2)
model(x).sum().backward()  # both are trained
optimizer.zero_grad()
adapter.requires_grad_(False)  # from now on the head alone, on features of its own
expected = adapter.weight.full_tensor().clone()
head(x).sum().backward()
optimizer.step()
observed = adapter.weight.full_tensor()
assert torch.equal(observed, expected), f"\n{expected=}\n{observed=}"
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/170667",
        says="near: closed, zeros for all parameters without a gradient",
        query="FSDP2 set_reduce_scatter_unused_params zero gradients frozen parameter "
        "requires_grad",
        date="2026-11-23",
    ),
    Public(
        query="fully_shard unused parameters reduce-scatter zeros frozen after unshard "
        "requires_grad stale",
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup._get_unsharded_grad_to_reduce",
        """
        self.reduce_scatter_unused_params and unsharded_param.requires_grad
        """,
        """
        self.reduce_scatter_unused_params and param.sharded_param.requires_grad
        """,
        Releases(since="2.15"),
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward",
        """
        and fsdp_param.unsharded_param.requires_grad
        """,
        """
        and fsdp_param.sharded_param.requires_grad
        """,
        Releases(until="2.15"),
    ),
)
