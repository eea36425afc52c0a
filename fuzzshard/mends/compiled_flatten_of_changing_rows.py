"""A compiled ``flatten`` refuses a DTensor sharded beyond its first dim once that has another size.

``_ViewShardingPropagator._rewrite_plain_shard`` (``torch/distributed/tensor/_ops/_view_ops.py``)
makes ``_StridedShard(0, split_factor=n)`` of the ``Shard(1)`` of an ``(n, 4)``. When another ``n``
comes, Dynamo traces it as a symbol. Since torch 2.13 that raises unless somebody has given a hint
for it, although the value is known: eager code computes with it.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DTensor: RuntimeError of a compiled flatten once the number of rows changes"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "By default (None), we automatically detect if dynamism has occurred and compile a more "
    "dynamic kernel upon recompile.",
    "torch.compile",
)
SETUP = (
    "A compiled module flattens activations that are sharded along their last dim, and the last "
    "batch of an epoch is smaller."
)
WORKAROUND = "Compile with ``dynamic=False``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

mesh = init_device_mesh("cpu", (2,))
flatten = torch.compile(torch.flatten, backend="eager")
for rows in (2, 3):
    x = DTensor.from_local(torch.ones(rows, 4), mesh, [Shard(1)])
    assert flatten(x).shape == torch.flatten(x).shape == (8 * rows,)
dist.destroy_process_group()
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/183545",
        "brought the error",
        "Cannot propagate strict view sharding through a symbolic _StridedShard split_factor "
        "without an explicit unbacked hint override",
        "2026-11-30",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.tensor._ops._view_ops:_ViewShardingPropagator._rewrite_plain_shard",
        """
        if isinstance(split_factor, torch.SymInt):
            if _explicit_unbacked_hint(split_factor) is None:
        """,
        """
        if isinstance(split_factor, torch.SymInt) and split_factor.node.has_hint():
            split_factor = int(split_factor)
        if isinstance(split_factor, torch.SymInt):
            if _explicit_unbacked_hint(split_factor) is None:
        """,
    ),
)
