"""A rank keeps the shard that its number in the world says, not its place in the mesh.

On meshes whose ranks lie in order, both are the same.
"""

import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo


def apply() -> None:
    found = FSDPMeshInfo.__post_init__

    def numbered(self: FSDPMeshInfo) -> None:
        found(self)
        self.shard_mesh_rank = dist.get_rank() % self.shard_mesh_size

    FSDPMeshInfo.__post_init__ = numbered
