"""The empty shard of a tensor-parallel parameter loses its other dims under ``fully_shard``.

``FSDPParam`` tells the chunks that ``_chunk_with_empty`` adds for ranks without rows by their
having no elements, and gives them a size of 0 along the shard dim (``_get_dim_chunked_size`` in
``torch/distributed/fsdp/_fully_shard/_fsdp_common.py``; ``length`` in ``_init_sharded_param`` and
``reset_sharded_param``). A parameter that has no elements on this rank already, for tensor
parallelism gave it none, has rows all the same: ``(1, 0)`` becomes ``(0, 0)``. Then the local
tensor is not what its DTensor says. What was added has one dim, or is empty along the shard dim.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard gives an empty shard of tensor parallelism another shape"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "the last few shards on the DeviceMesh dimension might be empty when the tensor dimension is "
    "not evenly "
    "divisible",
    "Shard",
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="fully_shard tensor parallel empty local shard to_local shape [0, 0] uneven "
        "sharding "
        "FSDPParam narrow numel 0",
        date="2026-11-22",
    ),
)
_FSDP = "torch.distributed.fsdp._fully_shard"
EDITS = (
    Edit(
        f"{_FSDP}._fsdp_common:_get_dim_chunked_size",
        """
        if chunk.numel() > 0:
        """,
        """
        if chunk.ndim == len(unchunked_size):
        """,
    ),
    Edit(
        f"{_FSDP}._fsdp_param:FSDPParam._init_sharded_param",
        """
        length = sharded_param.size(shard_dim) if sharded_param.numel() > 0 else 0
        """,
        """
        length = self.sharded_size[shard_dim]
        """,
    ),
    Edit(
        f"{_FSDP}._fsdp_param:FSDPParam.reset_sharded_param",
        """
        length = local_tensor.size(shard_dim) if local_tensor.numel() > 0 else 0
        """,
        """
        length = local_tensor.size(shard_dim)
        """,
    ),
)
