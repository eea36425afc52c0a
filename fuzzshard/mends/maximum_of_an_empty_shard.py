"""``amax`` of a DTensor raises on ranks whose shard has nothing along the reduced dim.

The rules of linear reductions (``LINEAR_REDUCTION_OP_MAP`` in
``torch/distributed/tensor/_ops/_math_ops.py``; "only valid when there is no padding") let every
rank take the largest value of its own shard, and the largest of these is the result. Where the dim
is shorter than there are ranks, or cannot be cut evenly, the last ranks have nothing, and nothing
has no largest value: ``amax`` raises there, and the other ranks wait. A sum of nothing is 0, so
sums need no care. So it is with ``argmax`` along a dim
(``torch/distributed/tensor/_nonlinear_redux.py``).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fuzzshard.mending import Edit, Patch, Promise, Public, Releases

TITLE = "DTensor.amax and argmax: IndexError on ranks that have nothing of the reduced dim"
COMPONENT = "DTensor"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Returns the maximum value of each slice of the :attr:`input` tensor in the given",
    "torch.amax",
)
SETUP = (
    "Activations are sharded along a dim that is shorter than there are ranks: one feature, a short "
    "sequence."
)
WORKAROUND = "Redistribute before, so that the reduced dim is whole."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

mesh = init_device_mesh("cpu", (2,))
x = distribute_tensor(torch.ones(2, 1), mesh, [Shard(1)])
print(x.amax(-1).full_tensor())
dist.destroy_process_group()
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/175776",
        "near, closed: rules of max along a dim",
        'DTensor amax max empty shard "Expected reduction dim" to have non-zero size',
        "2026-11-29",
    ),
)
_REDUCES = "torch.distributed.tensor._nonlinear_redux"
_GIVES = """
if local_tensor.size(dim) == 0:
    worst = float("-inf" if "max" in str(op_call) else "inf")
    local_tensor = torch.full_like(local_tensor.sum(dim, keepdim=True), worst)
"""
_BY_VALUE = "local_redux, local_idx = val_op(local_tensor, dim=dim, keepdim=True)"
EDITS = (
    Edit(f"{_REDUCES}:argminmax_handler", _BY_VALUE, f"{_GIVES}{_BY_VALUE}"),
    Edit(
        "torch.distributed.tensor._ops._math_ops:linear_reduction_strategy",
        """
        reduction_linear=True,
        """,
        """
        reduction_linear=reduction_op not in ("max", "min"),
        """,
        Releases(until="2.14"),
    ),
)


def apply(patch: Patch) -> None:
    """Leaves the rules out by which a rank would have nothing; 2.13 has no such rules."""
    import torch
    from torch.distributed.tensor import DTensor, Shard

    infos = DTensor._op_dispatcher.sharding_propagator.op_single_dim_strategy_funcs

    def all_have_some(*args: Any) -> bool:
        (given, *_) = args[-2]  # the last two are the specs of arguments and of results
        sizes = [
            (given.shape[p.dim], given.mesh.size(axis))
            for axis, p in enumerate(given.placements)
            if isinstance(p, Shard)
        ]
        return all(-(-size // ranks) * (ranks - 1) < size for size, ranks in sizes)

    for op in (torch.ops.aten.amax.default, torch.ops.aten.amin.default):
        if op in infos:
            filtered = dataclasses.replace(infos[op], full_mesh_strategy_filter=all_have_some)
            patch(infos, op, filtered)
