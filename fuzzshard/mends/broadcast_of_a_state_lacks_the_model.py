"""``set_state_dict`` hangs when rank 0 is to broadcast the state that it alone has.

It takes an empty state dict of the model for the wish to set that of the optimizer only
(``optim_only=not model_state_dict``). The other ranks have an empty one where rank 0 broadcasts:
with ``full_state_dict`` and ``cpu_offload`` ``get_state_dict`` gives them that. They skip the
broadcast of the model, which rank 0 begins. ``set_model_state_dict`` knows this and takes part.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "set_state_dict: hangs with broadcast_from_rank0 when only rank 0 has the state"
COMPONENT = "checkpoint"
WEIGHT = "bug"
CONTRACT = Promise(
    "rank0 should receive a full state_dict and will broadcast the tensors in the state_dict/ "
    "optim_state_dict one by one to other ranks. Other ranks will receive the tensors and shard "
    "according to the local shards in the model and optimizer.",
    "StateDictOptions",
)
SETUP = (
    "Rank 0 reads a checkpoint of whole tensors, the other ranks give empty state dicts, to save "
    "memory of the host."
)
WORKAROUND = "Call set_model_state_dict and set_optimizer_state_dict."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 2 example.py
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
model = nn.Linear(4, 2)
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(model.parameters())
options = StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True)
state, optimizer_state = get_state_dict(model, optimizer, options=options)
set_state_dict(
    model,
    optimizer,
    model_state_dict=state,
    optim_state_dict=optimizer_state,
    options=options,
)
dist.barrier()
"""
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/158836",
        "near, closed: a hang of set_state_dict when nothing was broadcast before",
        query="set_state_dict broadcast_from_rank0 hang empty model_state_dict on other ranks "
        "optim_only",
        date="2026-11-29",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.checkpoint.state_dict:set_state_dict",
        """
        info = _verify_options(
            model, optimizers, optim_only=not model_state_dict, options=options
        )
        """,
        """
        receives = options is not None and options.broadcast_from_rank0
        info = _verify_options(
            model, optimizers, optim_only=not (model_state_dict or receives), options=options
        )
        """,
    ),
)
