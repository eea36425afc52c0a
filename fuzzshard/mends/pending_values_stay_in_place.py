"""``rms_norm`` of a DTensor that is sharded along its features raises, and so may the backward of
``std`` or ``norm``.

They work in place on values of their own. ``rms_norm`` adds ``eps`` to a mean (``add_``), and
autograd sets a gradient to 0 where the deviation is 0 (``masked_fill_`` in ``std_backward`` and
``norm_backward`` of torch/csrc/autograd/FunctionsManual.cpp). A mean along a sharded dim, and the
gradient of what was broadcast along one, are ``Partial``: each rank has its part. The rules of
pointwise operators (``torch/distributed/tensor/_ops/_pointwise_ops.py``) have none by which these
two keep that, and an operator that works in place cannot redistribute: "Please use the
out-of-place version of this operation instead". Both may work on every part by itself: a number
that is added to all parts of a mean is added to the mean, and 0 is the sum of zeros.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = "DTensor: rms_norm and the backward of std raise along a sharded dim"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise("Apply Root Mean Square Layer Normalization.", "torch.nn.functional.rms_norm")
SETUP = "Activations that are sharded along the features are normalised or standardised."
WORKAROUND = "Write the norm with ``mean`` and ``rsqrt``, or redistribute before."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
x = distribute_tensor(torch.randn(2, 4), mesh, [Shard(1)])
norm = torch.nn.functional.rms_norm(x, x.shape[-1:])
torch.testing.assert_close(norm.square().mean().full_tensor(), torch.tensor(1.0))
dist.destroy_process_group()
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/164729",
        "near, closed: operators in place on pending sums",
        "DTensor std backward masked_fill_ in-place operations require placement changes not "
        "supported Partial",
        "2026-11-29",
    ),
    Public(
        "https://github.com/pytorch/pytorch/issues/152249",
        "closed; near: masked_fill_ had no rule at all",
        'DTensor "in-place operations that require placement changes are not supported" '
        "masked_fill_ norm backward Partial",
        "2026-11-29",
    ),
)


def apply(patch: Patch) -> None:
    """Adds the rules."""
    import torch
    from torch.distributed.tensor import DTensor, Partial, Replicate

    infos = DTensor._op_dispatcher.sharding_propagator.op_single_dim_strategy_funcs
    add, fill = torch.ops.aten.add_.Scalar, torch.ops.aten.masked_fill_.Scalar
    known = {op: infos[op].func for op in (add, fill)}

    def adding(op: Any, args: Any, kwargs: Any) -> Any:
        return [*known[add](op, args, kwargs), [Partial("avg"), Partial("avg")]]

    def filling(op: Any, args: Any, kwargs: Any) -> Any:
        pending = [Partial("sum"), Partial("avg")] if args[2] == 0 else []
        rules = [[p, p, Replicate()] for p in pending]
        return [*known[fill](op, args, kwargs), *rules]

    patch(infos, add, dataclasses.replace(infos[add], func=adding))
    patch(infos, fill, dataclasses.replace(infos[fill], func=filling))
