"""Under ``inference_mode()`` ``expand_as`` expands a DTensor to the size of a shard.

There operators come to DTensor undecomposed. ``expand_as`` has no rule, so its placements are
those by which its decomposition would run. That reads nothing of the other tensor but its size, so
this may stay sharded; and then ``expand_as`` itself runs on what the rank has of both, and expands
to the size of the other's shard. The result says that it is replicated, and is not. What is
computed with it is wrong, or raises where shards differ in size. ``nn.functional.normalize`` calls
``expand_as``.
"""

from __future__ import annotations

from typing import Any

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = "DTensor.expand_as: shape of a shard under inference_mode"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "Expand this tensor to the same size as :attr:`other`.", "torch.Tensor.expand_as"
)
SETUP = (
    "A model that normalises activations, which are sharded along their features, is evaluated "
    "under ``inference_mode()``."
)
WORKAROUND = "Use ``torch.no_grad()``, or ``expand``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

mesh = init_device_mesh("cpu", (2,))
x = torch.arange(15.0).view(3, 5)
with torch.inference_mode():
    sharded = distribute_tensor(x, mesh, [Shard(1)])
    actual = torch.nn.functional.normalize(sharded, dim=-1).full_tensor()
torch.testing.assert_close(actual, torch.nn.functional.normalize(x, dim=-1))
dist.destroy_process_group()
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/122485",
        "near: open, the placements of its result",
        "DTensor expand_as inference_mode wrong local shape normalize sharded",
        "2026-11-29",
    ),
)


def apply(patch: Patch) -> None:
    """Expands to the whole size."""
    import torch
    from torch.distributed.tensor import DTensor

    def handle(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0].expand(args[1].shape)

    handlers: Any = DTensor._op_dispatcher._custom_op_handlers
    patch(handlers, torch.ops.aten.expand_as.default, handle)
