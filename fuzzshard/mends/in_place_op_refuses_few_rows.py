"""An in-place op refuses a DTensor whose sharded dim has fewer elements than the mesh has ranks.

``expand_to_full_mesh_op_strategy`` (``torch/distributed/tensor/_ops/utils.py``) drops a strategy
that shards a dim of fewer elements than ranks, unless the argument has that placement already. The
first argument of an in-place op must keep its own, so what is left is to redistribute the others
to it: that strategy is dropped, none remains, and the op raises although the very same one works
with a row more. Torch 2.11 runs it. ``torch.optim.Muon`` ends with such an op: what it adds to a
parameter of few rows is replicated.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "DTensor: an in-place op with a replicated operand refuses a shard of fewer rows than ranks"
)
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "DTensor overrides the PyTorch operators to perform sharded computation and issue "
    "communications whenever necessary.",
    "torch.distributed.tensor.DTensor",
)
SETUP = (
    "fully_shard with torch.optim.Muon, and a weight of fewer rows than ranks: a head with one "
    "output, a gate with one row for each expert. Torch 2.11 runs it."
)
WORKAROUND = "Give such weights to another optimizer, or redistribute the operand first."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/vllm-project/speculators/pull/821",
        "merged: works around it, gives weights of one row to another optimizer",
    ),
    Public(
        "https://github.com/pytorch/pytorch/pull/173572",
        "near: words the error",
        "DTensor in-place operations that require placement changes are not supported add_ Shard "
        "dimension smaller than mesh size uneven Muon",
        "2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.tensor._ops.utils:expand_to_full_mesh_op_strategy",
        """
                and inp.strategies[0].output_spec.placements == s.placements
        """,
        """
                and (
                    inp.strategies[0].output_spec.placements == s.placements
                    or (inplace_op and s.placements == self_spec.placements)
                )
        """,
    ),
)
