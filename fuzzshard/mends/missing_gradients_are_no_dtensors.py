"""The backward of ``chunk`` raises where not every chunk of a DTensor was used.

Autograd puts the gradients of the chunks together by ``cat``, and makes zeros for a chunk that has
none (``split_backward`` in torch/csrc/autograd/FunctionsManual.cpp). These zeros are plain
tensors, and DTensors do not mix with plain tensors, so the backward raises that all tensors have
to be made DTensors first. The user has no plain tensor. ``prod`` fails in the same way, for which
autograd puts ones in front of a cumulative product. What autograd makes is the same on all ranks,
so it is replicated.
"""

from __future__ import annotations

from typing import Any

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = "DTensor.chunk: RuntimeError in the backward if one chunk is not used"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "Attempts to split a tensor into the specified number of chunks. Each chunk is a view of the "
    "input tensor.",
    "torch.chunk",
)
SETUP = (
    "A fused projection makes queries, keys and values at once, and a layer that shares keys and "
    "values with another one needs the queries alone."
)
WORKAROUND = "Take the part by ``narrow``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

mesh = init_device_mesh("cpu", (2,))
x = distribute_tensor(torch.ones(2, 4), mesh, [Shard(0)]).requires_grad_()
query, key = x.chunk(2, -1)
query.sum().backward()
dist.destroy_process_group()
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/173123",
        "open; near: such zeros in a compiled backward",
        'DTensor chunk split backward "got mixed torch.Tensor and DTensor" aten.cat unused output',
        "2026-11-29",
    ),
)


def apply(patch: Patch) -> None:
    """Replicates plain tensors that a ``cat`` gets beside DTensors."""
    import torch
    from torch.distributed.tensor import DTensor, Replicate

    handlers: dict[Any, Any] = DTensor._op_dispatcher._custom_op_handlers

    def handle(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = args[0]
        mesh = next(t.device_mesh for t in tensors if isinstance(t, DTensor))
        whole = [
            t if isinstance(t, DTensor) else DTensor.from_local(t, mesh, [Replicate()] * mesh.ndim)
            for t in tensors
        ]
        del handlers[op]
        try:
            return op(whole, *args[1:], **kwargs)
        finally:
            handlers[op] = handle

    patch(handlers, torch.ops.aten.cat.default, handle)
