"""The state of a parameter that is frozen at the moment is not loaded.

``_split_optim_state_dict`` (``torch/distributed/checkpoint/state_dict.py``) takes over the states
of parameters that require gradients, and drops those of the others; ``_init_optim_state`` makes
none for these either, so ``torch.distributed.checkpoint`` has nothing to load them into, and
``_unflatten_optim_state_dict`` leaves them out of a flattened state dict. A parameter that was
trained, frozen and is to be trained again comes back from a checkpoint without its moments. The
state of each parameter is to be made where it has none, so that what is saved and what is asked
for are the same, and what the checkpoint has is to be loaded.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "set_optimizer_state_dict: a state is not loaded when its parameter is frozen at the moment"
)
COMPONENT = "checkpoint"
WEIGHT = "bug"
CONTRACT = Promise(
    "``ignore_frozen_params``: if the value is True, the returned state_dict won't contain any "
    "frozen parameters -- the ``requires_grad`` is False. The default value is False.",
    "StateDictOptions",
)
SETUP = (
    "Parts of a model are trained and frozen in turn, and the job resumes while a part is "
    "frozen. It goes on without its moments when it is thawed, and nothing says so."
)
WORKAROUND = "Thaw the parameters for saving and for loading."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)


def make():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    return model, torch.optim.AdamW(model.parameters())


model, optimizer = make()
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
optimizer.zero_grad()
saved = get_optimizer_state_dict(model, optimizer)

model, optimizer = make()
model[0].requires_grad_(False)  # this part is not trained at the moment
set_optimizer_state_dict(model, optimizer, saved)
state = optimizer.state[model[0].weight]
assert "exp_avg" in state, f"0.weight: expected the moments that were saved, observed {state}"
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public("https://github.com/pytorch/pytorch/issues/192202", "open"),
    Public("https://github.com/pytorch/pytorch/pull/192307", "open"),
)
_MODULE = "torch.distributed.checkpoint.state_dict"
EDITS = (
    Edit(
        f"{_MODULE}:_split_optim_state_dict",
        """
        if param.requires_grad:
            if fqn in cast(DictValueType, optim_state_dict[_STATE]):
                state[fqn] = cast(DictValueType, optim_state_dict[_STATE])[fqn]
            elif info.strict:
        """,
        """
        if param.requires_grad or not info.ignore_frozen_params:
            if fqn in cast(DictValueType, optim_state_dict[_STATE]):
                state[fqn] = cast(DictValueType, optim_state_dict[_STATE])[fqn]
            elif info.strict and param.requires_grad:
        """,
    ),
    Edit(
        f"{_MODULE}:_init_optim_state",
        """
        if optim.state:
            # The optimizer state is initialized.
            return
        """,
        """
        if all(param in optim.state for group in optim.param_groups for param in group[_PARAMS]):
            # The optimizer state is initialized.
            return
        """,
    ),
    Edit(
        f"{_MODULE}:_init_optim_state",
        """
        if param.requires_grad:
            param.grad = torch.zeros_like(param)
        """,
        """
        if param not in optim.state:
            param.grad = torch.zeros_like(param)
        """,
    ),
    Edit(
        f"{_MODULE}:_unflatten_optim_state_dict",
        """
        if not param.requires_grad:
            continue
        """,
        """
        if not param.requires_grad and info.ignore_frozen_params:
            continue
        """,
    ),
)
