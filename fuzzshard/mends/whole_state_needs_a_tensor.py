"""A whole state of an optimizer without tensors cannot be set.

``_load_optim_state_dict`` (``torch/distributed/checkpoint/state_dict.py``) looks for the device of
the optimizer's own state, to distribute what it is given with ``full_state_dict``. Only tensors
that have a dim count, and it asserts that there was one: SGD without momentum has none, and what
is to be set are learning rates. Any device will do then. Flattening loses that there is a state
without entries, which ``Optimizer.load_state_dict`` misses.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "set_optimizer_state_dict: AssertionError with full_state_dict for SGD without momentum"
COMPONENT = "checkpoint"
WEIGHT = "bug"
CONTRACT = Promise(
    "The counterpart of ``get_optimizer_state_dict`` to set the state_dict to the optimizers",
    "set_optimizer_state_dict",
)
SETUP = (
    "A job keeps its state as whole tensors, and its optimizer is SGD without momentum. It cannot "
    "resume: set_state_dict raises, too."
)
WORKAROUND = "Do not set the state of such an optimizer but by its own load_state_dict."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

dist.init_process_group("gloo")
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
options = StateDictOptions(full_state_dict=True)
state = get_optimizer_state_dict(model, optimizer, options=options)
set_optimizer_state_dict(model, optimizer, state, options=options)
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="set_optimizer_state_dict full_state_dict SGD AssertionError Expected device to be set",
        date="2026-11-29",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.checkpoint.state_dict:_load_optim_state_dict",
        """
        if device is None:
            raise AssertionError("Expected device to be set")
        """,
        """
        if device is None:
            device = torch.device("cpu")
        """,
    ),
    Edit(
        "torch.distributed.checkpoint.state_dict:_load_optim_state_dict",
        "for pg in optim_state_dict[_PG]:",
        """
        optim_state_dict.setdefault(_STATE, {})
        for pg in optim_state_dict[_PG]:
        """,
    ),
)
