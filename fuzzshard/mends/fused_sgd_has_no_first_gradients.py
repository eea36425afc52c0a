"""SGD with fused and a momentum takes the first step of all parameters for one step.

``_fused_sgd`` (torch/optim/sgd.py) makes momentum buffers with ``empty_like`` where no parameter
has one, and tells the operator that this is the first step, which then writes them. If only some
have one, because others get their first gradient later, it hands over None for the others and
raises a TypeError. If a ``GradScaler`` has found an infinity, the operator writes nothing: the
buffers are kept with whatever was in their memory, and the next step is not the first any more.
Each parameter has a first step of its own. Buffers that a skipped step has made must not stay.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "torch.optim.SGD(fused=True): momentum is whatever memory held when GradScaler skips first"
COMPONENT = "other"
WEIGHT = "bug"
CONTRACT = Promise(
    "If no inf/NaN gradients are found, invokes ``optimizer.step()`` using the unscaled gradients. "
    "Otherwise, ``optimizer.step()`` is skipped to avoid corrupting the params.",
    "torch.amp.GradScaler.step",
)
SETUP = (
    "Float16 training begins with a scale that overflows, as the default of GradScaler mostly does, "
    "and SGD has fused=True and a momentum; or a frozen part is thawed later. One process suffices."
)
WORKAROUND = "Pass ``fused=False``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
from torch import nn

frozen, trained = nn.Linear(4, 4), nn.Linear(4, 1)
frozen.requires_grad_(False)
parameters = [*frozen.parameters(), *trained.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True)
for _ in range(2):
    trained(frozen(torch.ones(1, 4))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    frozen.requires_grad_(True)
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        link="https://github.com/LibreYOLO/libreyolo/pull/771",
        says="merged: libreyolo passes fused=False after NaN from the first step on",
        query="fused SGD momentum GradScaler found_inf first step uninitialized momentum_buffer",
        date="2026-11-29",
    ),
)
EDITS = (
    Edit(
        "torch.optim.sgd:_fused_sgd",
        """
        no_momentum_buffer = momentum == 0
        """,
        """
        no_momentum_buffer = momentum == 0
        first = [i for i, t in enumerate(momentum_buffer_list) if t is None and momentum != 0]
        if first:
            options = {
                "weight_decay": weight_decay,
                "momentum": momentum,
                "lr": lr,
                "dampening": dampening,
                "nesterov": nesterov,
                "maximize": maximize,
                "has_sparse_grad": has_sparse_grad,
            }
            skips = found_inf is not None and bool(found_inf.item())
            later = [i for i, t in enumerate(momentum_buffer_list) if t is not None]
            for places in (later, first) if later and not skips else ():
                lists = [[each[i] for i in places] for each in (params, grads)]
                buffers = [momentum_buffer_list[i] for i in places]
                _fused_sgd(*lists, buffers, grad_scale, found_inf, **options)
                for i, buffer in zip(places, buffers):
                    momentum_buffer_list[i] = buffer
            if later or skips:
                return
        """,
    ),
)
