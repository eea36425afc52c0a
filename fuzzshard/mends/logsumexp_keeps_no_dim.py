"""``logsumexp`` of a DTensor with ``keepdim=True`` puts its result on the wrong dim.

``logsumexp_single_dim_strategy`` (``torch/distributed/tensor/_ops/_math_ops.py``; in 2.13
``logsumexp_strategy``) looks for ``keepdim`` among the keyword arguments. The dispatcher passes
it by position, as every argument that a schema has before its ``*``, so the result is thought to
have lost the dim. What is sharded along a later dim is then said to be sharded along the one
before it: the values are put together wrongly, or, where sizes do not fit, ranks wait for pieces
of other sizes.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DTensor.logsumexp(keepdim=True): wrong values if a dim behind the reduced one is sharded"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "whether the output tensor has :attr:`dim` retained or not.", "torch.logsumexp, keepdim"
)
SETUP = (
    "A log-probability is computed from logits whose vocabulary is not their last dim, or whose "
    "heads are sharded."
)
WORKAROUND = "Call logsumexp without keepdim, and unsqueeze its result."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
x = torch.randn(2, 4, 4)
sharded = distribute_tensor(x, mesh, [Shard(2)])
expected = x.logsumexp(1, keepdim=True)
actual = sharded.logsumexp(1, keepdim=True)
print(actual.placements)  # Shard(2) is right
torch.testing.assert_close(actual.full_tensor(), expected)
dist.destroy_process_group()
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/163879",
        "near, closed: brought the line",
        "DTensor logsumexp wrong result sharded dim",
        "2026-11-29",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.tensor._ops._math_ops:logsumexp_single_dim_strategy",
        """
        keep_dim = cast(bool, kwargs_schema.get("keepdim", False))
        """,
        """
        keep_dim = bool(args_schema[2]) if len(args_schema) > 2 else False
        """,
        Releases(since="2.14"),
    ),
    Edit(
        "torch.distributed.tensor._ops._math_ops:logsumexp_strategy",
        """
        keep_dim = cast(bool, op_schema.kwargs_schema.get("keepdim", False))
        """,
        """
        keep_dim = bool(args_schema[2]) if len(args_schema) > 2 else False
        """,
        Releases(until="2.14"),
    ),
)
