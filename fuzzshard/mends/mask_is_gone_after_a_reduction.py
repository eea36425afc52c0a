"""What reduces a row-wise embedding's result once leaves it without its mask.

The placement of that result holds the mask of the indices that are in the shards of other ranks
(``_MaskPartial`` in ``torch/distributed/tensor/placement_types.py``), and ``_reduce_value`` lets
go of it (``MaskBuffer.release_mask`` in ``torch/distributed/tensor/_ops/_mask_buffer.py``). But
operators reduce a copy: ``clone()`` does, and in 2.15 ``detach()``, which used to pass the
placement on. The result itself stays, and nobody can reduce it any more. Compiled checkpoints
detach what they compute.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "DTensor: detach() of a row-wise embedding's result takes away the mask of the result"
COMPONENT = "DTensor"
WEIGHT = "exotic"
CONTRACT = Promise(
    "NOTE: the lifecycle of this _MaskPartial placement follows the corresponding DTensor"
    " lifecycle, i.e. the indices_mask would only be alive during the lifetime of the DTensor.",
    "torch.distributed.tensor.placement_types._MaskPartial",
)
SETUP = (
    "An ``nn.Embedding`` of ``RowwiseParallel`` within activation checkpointing, compiled; or"
    " ``detach()`` or ``clone()`` of such an embedding's result before ``full_tensor()``."
)
WORKAROUND = "Reduce the result before anything else is done with it."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
weight = distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Shard(0)])
ids = distribute_tensor(torch.tensor([0, 3]), mesh, [Replicate()])
rows = torch.nn.functional.embedding(ids, weight)
rows.clone()
print(rows.full_tensor())  # AssertionError
dist.destroy_process_group()
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/160697",
        "near, open: the same assertion, where AOTAutograd traces the embedding",
        "_MaskPartial detach embedding rowwise mask_buffer AssertionError _reduce_value compile"
        " checkpoint",
        "2026-11-29",
    ),
    Public("https://github.com/pytorch/pytorch/pull/185356", "near, closed"),
)
_BUFFER = "torch.distributed.tensor._ops._mask_buffer:MaskBuffer"
EDITS = (
    Edit(
        f"{_BUFFER}.release_mask",
        """
        if self.refcount == 0 or self.data is None:
            raise RuntimeError("MaskBuffer has not been materialized")
        self.refcount -= 1
        if self.refcount == 0:
            self.data = None
        """,
        """
        self.refcount = max(0, self.refcount - 1)  # another lookup may write the mask then
        """,
    ),
    Edit(
        f"{_BUFFER}.apply_mask",
        "if self.refcount == 0 or self.data is None:",
        "if self.data is None:",
    ),
)
