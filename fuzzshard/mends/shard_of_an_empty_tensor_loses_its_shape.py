"""The empty shard of a tensor-parallel parameter loses its other dims under ``fully_shard``.

``FSDPParam`` gives every chunk without elements a size of 0 along the shard dim, because it takes
it for one that ``_chunk_with_empty`` added for a rank without rows (``_get_dim_chunked_size`` in
``torch/distributed/fsdp/_fully_shard/_fsdp_common.py``; ``length`` in ``_init_sharded_param`` and
``reset_sharded_param``). But if tensor parallelism has already left this rank a parameter without
elements, the chunk still has rows: ``(1, 0)`` becomes ``(0, 0)``, and the local tensor has another
shape than its DTensor says. The chunks that were added can be told by their shape: they have one
dim, or are empty along the shard dim.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "fully_shard: a DTensor and its local tensor differ in shape when tensor parallelism leaves"
    " it empty"
)
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "the last few shards on the DeviceMesh dimension might be empty when the tensor dimension is "
    "not evenly divisible",
    "Shard",
)
SETUP = "Tensor parallelism splits a small layer over more ranks than it has rows or columns."
WORKAROUND = "Leave the layer out of the tensor-parallel plan."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="fully_shard tensor parallel empty local shard to_local shape [0, 0] uneven "
        "sharding FSDPParam narrow numel 0",
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
