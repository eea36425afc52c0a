"""With an int ``reshard_after_forward`` the registered parameter has other rows than it says, or
too few.

``FSDPParam.to_sharded_post_forward`` (``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``) cuts
the flat output of the all-gather in equal parts, padding included, and registers a part as
``Shard(0)`` of the parameter on the smaller mesh. ``Shard(0)`` means chunks of the parameter's own
rows, which begin elsewhere where the shard axis, or the int, does not divide them:
``full_tensor()`` after forward is wrong. Where the parameter is sharded along another dim, nothing
is padded, and the rows can reach past the end of the part: a RuntimeError. The parts serve the
next all-gather; the rows have to be copied on their own where they differ.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "With an int reshard_after_forward the registered parameter has rows of another chunk"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "After forward, the parameters registered to the module depend on to this: [...] the "
    "parameters resharded"
    " to the smaller mesh otherwise",
    "fully_shard, reshard_after_forward",
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="FSDP2 fully_shard reshard_after_forward int uneven sharding full_tensor wrong "
        "after forward",
        date="2026-11-22",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/118017",
        "near: brought the cut",
        "fully_shard reshard_after_forward int uneven sharding to_sharded_post_forward wrong "
        "full_tensor",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.to_sharded_post_forward",
        """
sharded_post_forward_tensor = torch.as_strided(
    self._sharded_post_forward_param_data,
    size=self.sharded_post_forward_size,
    stride=self.contiguous_sharded_post_forward_stride,
    storage_offset=0,
)
        """,
        """
rows = self._orig_size[0]
even = rows % shard_world_size == 0 and numel == self._orig_size.numel()
first_row = min(-(-rows // shard_world_size) * shard_rank, rows)
sharded_post_forward_tensor = torch.as_strided(
    self._sharded_post_forward_param_data if even else self.all_gather_outputs[0],
    size=self.sharded_post_forward_size,
    stride=self.contiguous_sharded_post_forward_stride,
    storage_offset=0 if even else first_row * self._contiguous_orig_stride[0],
)
if not even:
    sharded_post_forward_tensor = sharded_post_forward_tensor.clone()
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam._init_sharded_post_forward_param_metadata",
        """
chunks[mesh_info.shard_mesh_rank],
param_data.size(),
dim=self.fsdp_placement.dim,
        """,
        """
chunks[mesh_info.shard_mesh_rank],
param_data.size(),
dim=0,
        """,
    ),
)
