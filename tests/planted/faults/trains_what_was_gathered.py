"""Parameters with ``fsdp_post_all_gather`` become a shard of what was gathered, rounded or not."""

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam, ShardedState


def apply() -> None:
    to_sharded = FSDPParam.to_sharded

    def wrong(self):
        shard = self._sharded_local_tensor
        if hasattr(shard, "fsdp_post_all_gather") and self.sharded_state == ShardedState.UNSHARDED:
            gathered = self._unsharded_param.detach()
            with torch.no_grad():
                shard.copy_(
                    torch.chunk(gathered, self.mesh_info.shard_mesh_size)[
                        self.mesh_info.shard_mesh_rank
                    ]
                )
        to_sharded(self)

    FSDPParam.to_sharded = wrong
