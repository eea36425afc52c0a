"""FSDP1 accumulates gradients of frozen parameters under ``no_sync()``, and counts them once these
are unfrozen.

With ``use_orig_params`` a unit may have frozen parameters beside trained ones. Its forward reads
them all as views of one flat parameter, which requires a gradient
(``FlatParamHandle._use_unsharded_views`` in ``torch/distributed/fsdp/_flat_param.py``), so the
flat gradient has parts for the frozen ones too. They are hidden from the user, not dropped. Where
``no_sync()`` keeps the unsharded flat gradient and the parameter is unfrozen before the next
microbatch, its gradient is that of both. The views must stay in the graph, as the end of their
backward is what FSDP1 waits for before it reshards; so their gradients are to be zero.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1: a parameter gets gradients of microbatches in which it was frozen, under no_sync()"
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "During the backward pass (``loss.backward()``), only leaf tensors with "
    "``requires_grad=True`` will have gradients accumulated into their ``.grad`` fields.",
    "docs/source/notes/autograd.rst, Setting requires_grad",
)
SETUP = (
    "A part of the model is unfrozen during training, as in gradual unfreezing, at a moment that "
    "counts batches and not steps: in the middle of gradient accumulation under ``no_sync()``."
)
WORKAROUND = "Change ``requires_grad`` between a step and the next forward only."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel

mesh = init_device_mesh("cpu", (2,))
linear = nn.Linear(2, 2)
linear.weight.requires_grad_(False)
model = FullyShardedDataParallel(
    linear, device_mesh=mesh, use_orig_params=True, device_id=torch.device("cpu")
)
x = torch.ones(1, 2)  # equal on all ranks
with model.no_sync():
    model(x).sum().backward()
model.requires_grad_(True)  # the bias has the gradient of two microbatches, the weight of one
model(x).sum().backward()
with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
    gradient = model.module.weight.grad
    assert torch.equal(gradient, torch.ones(2, 2)), gradient
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/issues/91167",
        says="near: closed, asks for units with frozen parameters; their gradients are not to "
        "reach the original parameters",
        query="FSDP use_orig_params frozen parameter gradient accumulated in no_sync, then "
        "unfrozen requires_grad True, wrong gradient",
        date="2026-11-25",
    ),
    Public(
        link="https://github.com/pytorch/pytorch/pull/104186",
        says="near: parameters may be unfrozen after some steps",
        query="FSDP1 mixed requires_grad flat parameter computes gradients for frozen parameters "
        "use_orig_params unfreeze during gradient accumulation",
        date="2026-11-25",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._flat_param:FlatParamHandle._use_unsharded_views",
        """
        param_var: Tensor = view
        """,
        """
        frozen = self._use_orig_params and not flat_param._params[i].requires_grad
        if frozen and view.requires_grad:
            view.register_hook(torch.zeros_like)
        param_var: Tensor = view
        """,
    ),
)
