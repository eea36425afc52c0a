"""``fully_shard`` refuses DTensors on the very mesh that it is given, if an equal mesh was there
before.

``FSDPParam._init_sharding_spec_spmd``
(``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``) asks whether the mesh of a parameter is
the object that ``fully_shard`` was called with. Operators on DTensors, among them the detach in
``nn.Parameter(...)`` of ``distribute_module``, answer with specs that the sharding propagator has
cached, by equality: that of the second model names the mesh of the first one, which is equal.
``DeviceMesh`` makes a new object for every ``mesh["dp"]`` and every ``init_device_mesh()``.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard(dp_mesh_dims=...): ValueError for a second model when its mesh equals an earlier one"
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "When provided, mesh is treated as the full SPMD mesh, and parameters should be DTensors on "
    "this mesh with Replicate() on all DP dimensions.",
    "fully_shard, dp_mesh_dims",
)
SETUP = (
    "A second model (a teacher, the same one built anew for a checkpoint) is distributed on a "
    "mesh that was sliced or made again."
)
WORKAROUND = "Slice the mesh once, and give all models that object."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        query='fully_shard dp_mesh_dims "different mesh objects" Expected param\'s DTensor mesh '
        "to be the same mesh passed",
        date="2026-11-29",
    ),
    Public(
        query="DTensor sharding propagator cache returns spec with a different equal DeviceMesh "
        "object, is comparison fails FSDP SPMD mesh",
        date="2026-11-29",
    ),
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import DataParallelMeshDims, fully_shard
from torch.distributed.tensor import distribute_module

dist.init_process_group("gloo")
world = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("pp", "dp"))
for name in ("teacher", "student"):
    mesh = world["dp"]
    model = distribute_module(nn.Linear(4, 4), mesh)
    fully_shard(model, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="dp"))
dist.destroy_process_group()
"""
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam._init_sharding_spec_spmd",
        "and spmd_mesh is not self.mesh_info.spmd_mesh",
        "and spmd_mesh != self.mesh_info.spmd_mesh",
    ),
)
