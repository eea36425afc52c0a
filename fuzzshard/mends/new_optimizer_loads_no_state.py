"""``dcp.load`` loads nothing into an optimizer that has made no step, and says nothing.

``dcp.load`` (``torch/distributed/checkpoint/state_dict_loader.py``) calls ``state_dict`` of each
object, reads what that has from the checkpoint, and calls ``load_state_dict`` with it. An optimizer
makes its states in the first step. That of a new one has groups of parameters and no state, so no
moment is read, although the checkpoint has all of them. Training goes on as if it had just begun.
``get_optimizer_state_dict`` makes the states before it hands them out; ``dcp.load`` can, too, for
the parameters of which the checkpoint has a state.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "dcp.load: no state is loaded into an optimizer that has not stepped, and nothing says so"
COMPONENT = "checkpoint"
WEIGHT = "limitation"
CONTRACT = Promise(
    "For each ``Stateful`` object (having both a ``state_dict`` and a ``load_state_dict``), load "
    "will first call ``state_dict`` before attempting deserialization, followed by "
    "``load_state_dict`` once the deserialization is complete.",
    "torch.distributed.checkpoint.load",
)
SETUP = (
    "A job saves its optimizer, or optimizer.state_dict(), with dcp.save, and resumes with an "
    "optimizer that has just been made. The loss jumps after the first steps, or nobody notices."
)
WORKAROUND = "Save and load what ``get_optimizer_state_dict`` returns, and call ``set_optimizer_state_dict``."
EXAMPLE = r"""
# torchrun --standalone --nproc-per-node 1 example.py
import tempfile
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

dist.init_process_group("gloo")
model, folder = nn.Linear(4, 1), tempfile.mkdtemp()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
optimizer.zero_grad()
dcp.save({"optimizer": optimizer}, checkpoint_id=folder)

resumed = torch.optim.AdamW(model.parameters())
dcp.load({"optimizer": resumed}, checkpoint_id=folder)
assert len(resumed.state) == 2, f"states of {len(resumed.state)} parameters of 2 are loaded"
"""
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        link="https://github.com/huggingface/accelerate/issues/3971",
        says="accelerate loads optimizers so",
        query="dcp.load optimizer state_dict empty fresh optimizer never stepped silently not "
        "loaded",
        date="2026-11-29",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.checkpoint.state_dict_loader:load",
        """
        stateful_sd[key] = elem.state_dict() if isinstance(elem, Stateful) else elem
        """,
        """
        if isinstance(elem, torch.optim.Optimizer) and not elem.state:
            from torch.distributed.checkpoint.state_dict import _init_optim_state

            saved = storage_reader.read_metadata().state_dict_metadata
            params = [p for group in elem.param_groups for p in group["params"]]
            said = [(p, p.requires_grad, p.grad_dtype, p.grad) for p in params]
            for p, *_ in said:  # which makes states of what is trained, from zeros like it
                p.grad = None
                p.requires_grad_(True).grad_dtype = p.dtype
            _init_optim_state(elem)
            for p, requires_grad, grad_dtype, grad in said:
                p.grad = None
                p.requires_grad_(True).grad_dtype = grad_dtype
                p.grad = grad
                p.requires_grad_(requires_grad)
            for i, p in enumerate(params):
                for name in [*elem.state.get(p, ())]:  # a tensor has a size, and None has not
                    if not hasattr(saved.get(f"{key}.state.{i}.{name}"), "size"):
                        del elem.state[p][name]
                if not elem.state.get(p):
                    elem.state.pop(p, None)
        stateful_sd[key] = elem.state_dict() if isinstance(elem, Stateful) else elem
        """,
    ),
)
