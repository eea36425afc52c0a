"""Backward fails on a rank whose shard of tensor parallelism is empty.

``foreach_reduce_scatter_copy_in`` (``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``)
hands the gradients of a group to ``torch._chunk_cat``, which refuses one without elements. A rank
has such a gradient where tensor parallelism has split a dimension that is smaller than its mesh.
There is nothing to copy of it: its part of the buffer is empty as well.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard: backward fails when tensor parallelism leaves a rank an empty gradient"
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "the last few shards on the DeviceMesh dimension might be empty when the tensor dimension is "
    "not evenly divisible on the device mesh dimension",
    "torch.distributed.tensor.Shard",
)
SETUP = (
    "Tensor parallelism splits a small layer (a head of few classes, a gate of few experts) "
    "over more ranks than it has rows."
)
WORKAROUND = "Leave the layer out of the tensor-parallel plan."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="torch._chunk_cat empty tensor FSDP2 tensor parallel uneven dim error backward "
        "reduce scatter copy in",
        date="2026-11-22",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/164554",
        "open; near: an empty shard of fully_shard itself, from meta tensors",
        "torch._chunk_cat empty tensor tensor parallel uneven shard FSDP2 backward error",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce_scatter_copy_in",
        "reduce_scatter_input = reduce_scatter_input.view(world_size, -1)",
        """
unsharded_grads = [grad for grad in unsharded_grads if grad.numel() > 0]
if not unsharded_grads:
    return
reduce_scatter_input = reduce_scatter_input.view(world_size, -1)
        """,
    ),
)
