"""``loss_parallel()`` takes no labels that are plain tensors under ``torch.inference_mode()``.

``cross_entropy`` is made of ``log_softmax`` and ``nll_loss``, which the context manager replaces by
what knows plain labels (``customized_loss_ops`` in ``torch/distributed/tensor/parallel/loss.py``).
Under ``inference_mode`` nothing takes it apart, so that ``aten.cross_entropy_loss`` itself comes to
DTensor, which is not among them, and refuses to mix tensors and DTensors:
"aten.cross_entropy_loss.default got mixed torch.Tensor and DTensor". Under ``no_grad`` the same
call works.
"""

from __future__ import annotations

from typing import Any

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = "loss_parallel: cross_entropy raises under inference_mode when labels are a plain tensor"
COMPONENT = "DTensor"
WEIGHT = "bug"
CONTRACT = Promise(
    "Within this context manager, one can use [...] as usual, with the following assumptions on the "
    "input parameters.",
    "loss_parallel",
)
SETUP = "Somebody evaluates a model under inference_mode by the loss that it is trained with."
WORKAROUND = "Evaluate under ``torch.no_grad()``."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        query="loss_parallel cross_entropy inference_mode aten.cross_entropy_loss got mixed "
        "torch.Tensor and DTensor",
        date="2026-11-29",
    ),
)
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
logits = distribute_tensor(torch.ones(2, 3), mesh, [Shard(1)])
with torch.inference_mode(), loss_parallel():
    nn.functional.cross_entropy(logits, torch.tensor([0, 2]))
dist.destroy_process_group()
"""


def apply(patch: Patch) -> None:
    """Takes what is made of others apart, as autograd does otherwise."""
    import torch
    from torch.distributed.tensor.parallel import loss

    aten = torch.ops.aten

    def take_apart(op_call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return op_call.decompose(*args, **kwargs)

    losses = (aten.cross_entropy_loss, aten.nll_loss_nd, aten.nll_loss, aten.nll_loss2d)
    for op in (*(each.default for each in losses), aten.log_softmax.int):
        patch(loss.customized_loss_ops, op, take_apart)
