"""A group of ``fully_shard`` that is replicated alone is not resharded after forward, and computes
with old values afterwards.

For ``dp_mesh_dims`` without ``shard``, ``fully_shard``
(``torch/distributed/fsdp/_fully_shard/_fully_shard.py``) has no ``post_forward_mesh_info``,
whatever ``reshard_after_forward`` is: "DDPMeshInfo: no sharding, so no post-forward resharding
needed". But the unsharded parameters are copies (``FSDPParamGroup.wait_for_unshard``). After a
forward without a backward they stay, and what the optimizer then does to the sharded ones no
forward sees until a backward has resharded. ``set_reshard_after_forward`` ends in an
AssertionError. With the mesh of the group there, resharding frees the copy, as it does where the
axis to shard over has one rank.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard(dp_mesh_dims=...): forwards use old weights after an evaluation when replicated alone"
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "If ``True``, then this reshards parameters after forward and re-all-gathers in backward.",
    "fully_shard, reshard_after_forward",
)
SETUP = (
    "A model on DTensors is replicated alone, as torchtitan trains it without an axis to shard "
    "over, and is evaluated between a backward and its step."
)
WORKAROUND = "Call ``reshard()`` on each module after an evaluation."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/166469",
        "near: closed, took reshard_after_forward out of ``replicate``, which promises none since",
        "fully_shard dp_mesh_dims replicate only DDPMeshInfo reshard_after_forward stale "
        "parameters set_reshard_after_forward AssertionError",
        "2026-11-29",
    ),
    Public(
        query="FSDP2 replicate-only mesh (DDP) unsharded parameters not refreshed after optimizer "
        "step following eval forward",
        date="2026-11-29",
    ),
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import DataParallelMeshDims, fully_shard
from torch.distributed.tensor import DTensor, distribute_module

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
model = distribute_module(nn.Sequential(nn.Linear(2, 2)), mesh)
dims = DataParallelMeshDims(replicate="dp")
fully_shard(model[0], mesh=mesh, dp_mesh_dims=dims, reshard_after_forward=True)
fully_shard(model, mesh=mesh, dp_mesh_dims=dims)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
x = DTensor.from_local(torch.ones(1, 2), mesh)
model(x).to_local().sum().backward()
with torch.no_grad():
    before = model(x).to_local()
    optimizer.step()
    after = model(x).to_local()
assert not torch.equal(before, after), "the step of the optimizer is not seen"
dist.destroy_process_group()
"""
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_init:_init_param_group",
        "from ._fsdp_param_group import FSDPParamGroup",
        """
        from ._fsdp_param_group import FSDPParamGroup

        if mesh_info.is_spmd_mesh and not isinstance(mesh_info, FSDPMeshInfo):
            post_forward_mesh_info = None if reshard_after_forward is False else mesh_info
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fully_shard:FSDPModule.set_reshard_after_forward",
        "raise AssertionError",
        """
        mesh_info = fsdp_param_group.mesh_info if reshard_after_forward else None
        fsdp_param_group.post_forward_mesh_info = mesh_info
        continue
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.__init__",
        "if self.post_forward_mesh_info:",
        "if isinstance(self.post_forward_mesh_info, FSDPMeshInfo):",
    ),
)
