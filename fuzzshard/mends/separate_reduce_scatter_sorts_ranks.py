"""``set_separate_reduce_scatter_group`` gives shards of gradients to other ranks than gather them.

``FSDPParamGroup._set_separate_reduce_scatter_group``
(``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``) makes the group by
``dist.new_group(ranks)``, which sorts the ranks. In the group of a mesh with
``preserve_rank_order=True`` they have the order of the mesh, and shards of parameters lie in that
order, so the reduce-scatter gives a rank the gradient of a shard that another rank has.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "set_separate_reduce_scatter_group: gradients of other shards where ranks have an order"
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "Enables (or disables) running gradient reduce-scatter on its own process group so it can "
    "overlap with all-gather in the backward pass",
    "FSDPModule.set_separate_reduce_scatter_group",
)
SETUP = (
    "A model is sharded over a mesh whose ranks have an order of their own "
    "(``preserve_rank_order=True``), and its reduce-scatters get a process group of their own."
)
WORKAROUND = "Leave out ``set_separate_reduce_scatter_group``, or number the ranks in order."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = DeviceMesh("cpu", torch.tensor([1, 0]), preserve_rank_order=True)
model = fully_shard(nn.Linear(1, 2, bias=False), mesh=mesh)
model.set_separate_reduce_scatter_group(True)
(model(torch.ones(1, 1)) * torch.tensor([3.0, 5.0])).sum().backward()
gradient = model.weight.grad.full_tensor().flatten().tolist()
assert gradient == [3, 5], f"the gradient is {gradient}, not [3, 5]"
dist.destroy_process_group()
"""
TORCH = Releases(since="2.15")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/193224",
        "near: what preserve_rank_order came with; it passes sort_ranks to the groups of meshes",
        "set_separate_reduce_scatter_group preserve_rank_order new_group sort_ranks wrong "
        "gradient; DeviceMesh preserve_rank_order permuted ranks FSDP2 reduce-scatter separate "
        "process group",
        "2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:"
        "FSDPParamGroup._set_separate_reduce_scatter_group",
        """
                    group_desc="fsdp_reduce_scatter",
        """,
        """
                    group_desc="fsdp_reduce_scatter",
                    sort_ranks=False,
        """,
    ),
)
