"""A flattened optimizer state of whole tensors cannot be set.

``get_optimizer_state_dict`` returns it with ``full_state_dict`` and ``flatten_optimizer_state_dict``.
``_load_optim_state_dict`` (``torch/distributed/checkpoint/state_dict.py``) unflattens what it is
given, and asks the optimizer for its own state to distribute the values into, with the same
options: that one is flat. The two have no keys in common, and a ``KeyError`` names a key of the
group of parameters. What it asks for itself is to be nested.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "set_optimizer_state_dict: KeyError with full_state_dict and flatten_optimizer_state_dict"
COMPONENT = "checkpoint"
WEIGHT = "bug"
CONTRACT = Promise(
    "The counterpart of ``get_optimizer_state_dict`` to set the state_dict to the optimizers",
    "set_optimizer_state_dict",
)
SETUP = (
    "A job keeps its state as one flat dict of whole tensors, which any number of ranks can load. "
    "It cannot resume."
)
WORKAROUND = "Leave out flatten_optimizer_state_dict, for getting and for setting."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
optimizer.zero_grad()

options = StateDictOptions(full_state_dict=True, flatten_optimizer_state_dict=True)
state = get_optimizer_state_dict(model, optimizer, options=options)
set_optimizer_state_dict(model, optimizer, state, options=options)
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/127071",
        "near: flattens and unflattens, without full_state_dict",
        query="set_optimizer_state_dict full_state_dict flatten_optimizer_state_dict KeyError "
        "param_groups broadcast_from_rank0",
        date="2026-11-29",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.checkpoint.state_dict:_load_optim_state_dict",
        """
        info.full_state_dict = False
        local_state_dict = _get_optim_state_dict(model, (optim,), info)
        info.full_state_dict = True
        """,
        """
        flattens = info.flatten_optimizer_state_dict
        info.full_state_dict = info.flatten_optimizer_state_dict = False
        local_state_dict = _get_optim_state_dict(model, (optim,), info)
        info.full_state_dict, info.flatten_optimizer_state_dict = True, flattens
        """,
    ),
)
