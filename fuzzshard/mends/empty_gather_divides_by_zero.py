"""The copy of an all-gather without elements divides by zero on a GPU.

``split_with_sizes_copy_out_cuda_contiguous_no_cast``
(``aten/src/ATen/native/cuda/TensorShape.cu``) counts the blocks that its outputs take and divides
by their number, which is 0 where none has an element. ``foreach_all_gather_copy_out``
(``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``) calls it for a group of which tensor
parallelism leaves a rank nothing. There is nothing to copy.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "On a GPU the all-gather of a group that is empty on a rank is an arithmetic exception"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "the last few shards on the DeviceMesh dimension might be empty when the tensor dimension is "
    "not evenly"
    " divisible on the device mesh dimension",
    "torch.distributed.tensor.Shard",
)
TORCH = Releases(since="2.11", until="2.12")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/117203",
        "near: added the kernel",
        "fully_shard CUDA split_with_sizes_copy floating point exception SIGFPE empty shard "
        "integer division"
        " by zero",
        "2026-11-22",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_all_gather_copy_out",
        "all_gather_output = all_gather_output.view(world_size, -1)",
        """
if all_gather_output.numel() == 0:
    return
all_gather_output = all_gather_output.view(world_size, -1)
        """,
    ),
)
