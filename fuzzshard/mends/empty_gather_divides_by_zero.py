"""The copy of an all-gather without elements divides by zero on a GPU.

``split_with_sizes_copy_out_cuda_contiguous_no_cast``
(``aten/src/ATen/native/cuda/TensorShape.cu``) counts the blocks that its outputs take and divides
by their number, which is 0 where none has an element. ``foreach_all_gather_copy_out``
(``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``; from 2.15 on
``_copy_all_gather_outputs``) calls it for a group of which tensor parallelism leaves a rank
nothing. There is nothing to copy.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "fully_shard: SIGFPE on a GPU when a group has no elements on a rank"
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "the last few shards on the DeviceMesh dimension might be empty when the tensor dimension is "
    "not evenly divisible on the device mesh dimension",
    "torch.distributed.tensor.Shard",
)
SETUP = (
    "Tensor parallelism splits a small layer over more ranks than it has rows, and the layer is"
    " a group of its own."
)
WORKAROUND = "Leave the layer out of the tensor-parallel plan, or wrap it together with others."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/117203",
        "near: added the kernel",
        "fully_shard CUDA split_with_sizes_copy floating point exception SIGFPE empty shard "
        "integer division by zero",
        "2026-11-22",
    ),
)
_NOTHING_TO_COPY = """
if all_gather_output.numel() == 0:
    return
all_gather_output = all_gather_output.view(world_size, -1)
"""
_COLLECTIVES = "torch.distributed.fsdp._fully_shard._fsdp_collectives"
EDITS = (
    Edit(
        f"{_COLLECTIVES}:foreach_all_gather_copy_out",
        "all_gather_output = all_gather_output.view(world_size, -1)",
        _NOTHING_TO_COPY,
        Releases(until="2.15"),
    ),
    Edit(
        f"{_COLLECTIVES}:_copy_all_gather_outputs",
        "all_gather_output = all_gather_output.view(world_size, -1)",
        _NOTHING_TO_COPY,
        Releases(since="2.15"),
    ),
)
