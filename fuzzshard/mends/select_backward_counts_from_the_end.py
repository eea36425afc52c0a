"""The backward of ``select`` along a negative dim says that a DTensor is sharded along another dim.

``select_backward_strategy`` (torch/distributed/tensor/_ops/_tensor_ops.py) shifts the dims of
shards behind the one that comes back, and compares them with the dim as the caller gave it: every
dim is behind -1. Torch 2.14 normalises it.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DTensor: the backward of select(-1, index) raises, or is sharded along a wrong dim"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "DTensor overrides the PyTorch operators to perform sharded computation and issue "
    "communications whenever necessary.",
    "torch.distributed.tensor.DTensor",
)
SETUP = "A model on DTensors selects along a negative dim: ``x[..., 0]`` or ``x.select(-1, 0)``."
WORKAROUND = "Use torch 2.14, or count the dim from the front."
TORCH = Releases(since="2.13", until="2.14")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/149071",
        "brought: the rule of select_backward",
        "DTensor select_backward negative dim shift_shard_dims_after_insert normalize",
        "2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.tensor._ops._tensor_ops:select_backward_strategy",
        "output_placements = shift_shard_dims_after_insert(input_spec.placements, dim)",
        """
        output_placements = shift_shard_dims_after_insert(
            input_spec.placements, normalize_dim(dim, len(args_schema[1]))
        )
        """,
    ),
)
