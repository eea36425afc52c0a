"""A row-wise embedding fails on the ranks whose shard has no rows.

The local embedding of a rank gets indices in which everything that belongs to other ranks is
replaced by row 0 (``MaskBuffer``, ``_MaskPartial`` in ``torch/distributed/tensor``). Where the
rows are fewer than the ranks, or split so that the last have none, there is no row 0, and the
kernel refuses. ``OpDispatcher`` runs the kernel as it is
(``torch/distributed/tensor/_dispatch.py``). A row of zeros for it to read is enough, for its
result is masked.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "RowwiseParallel: nn.Embedding fails when the shard of a rank has no rows"
COMPONENT = "DTensor"
WEIGHT = "exotic"
CONTRACT = Promise(
    "the last few shards on the DeviceMesh dimension might be empty when the tensor dimension is "
    "not evenly divisible",
    "Shard",
)
SETUP = (
    "A small embedding (token types, positions of a test model) is split over more "
    "tensor-parallel ranks than it has rows, or in chunks that leave the last ranks without "
    "one."
)
WORKAROUND = "Leave the embedding out of the tensor-parallel plan."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="RowwiseParallel embedding empty shard index_select self indexing axis dim should "
        "be positive",
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.tensor._dispatch:OpDispatcher._dispatch_get_local_results_slow_path",
        """
        local_tensor_args = cast(tuple[object, ...], local_tensor_args)
        """,
        """
        local_tensor_args = cast(tuple[object, ...], local_tensor_args)
        if op_call is aten.embedding.default and local_tensor_args[0].size(0) == 0:
            weight, *others = local_tensor_args
            local_tensor_args = (weight.new_zeros(1, *weight.shape[1:]), *others)
        """,
    ),
)
