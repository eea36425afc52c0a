"""``set_model_state_dict`` renames the keys of a module or parameter under one of its names only.

It adds what ``get_model_state_dict`` takes away (the ``module.`` of DDP, the ``_orig_mod.`` of a
compiled module) to the name of each parameter that ``_iterate_valid_model_state``
(``torch/distributed/checkpoint/state_dict.py``) yields. That generator comes to a module once,
under the first of its names, and so to a parameter that one module has under two names, while a
state dict has all of them. What it skips keeps the short name, so the state dict has a key that
the model lacks, and lacks one that it has. Only a module that holds itself must be skipped.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "set_model_state_dict: keys are missing under DDP when a module or parameter has two names"
COMPONENT = "checkpoint"
WEIGHT = "bug"
CONTRACT = Promise(
    "The counterpart of ``get_model_state_dict`` to set the state_dict to the model",
    "set_model_state_dict",
)
SETUP = (
    "A module is registered under two names, as a shared encoder is, and the model is loaded "
    "while it is wrapped by DDP."
)
WORKAROUND = "Call it on ``ddp.module``, whose names have no prefix."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        query="set_model_state_dict DDP missing keys module. prefix shared module alias tied",
        date="2026-11-22",
    ),
)
_TARGET = "torch.distributed.checkpoint.state_dict:_iterate_valid_model_state"
EDITS = (
    Edit(
        _TARGET,
        """
        for name, submodule in module.named_children():
            if submodule in visited_modules:
        """,
        """
        for name, submodule in module._modules.items():
            if submodule is None or submodule in visited_modules:
        """,
    ),
    Edit(
        _TARGET,
        """
            yield from recurse(submodule, new_fqn)
        """,
        """
            yield from recurse(submodule, new_fqn)
            visited_modules.discard(submodule)
        """,
    ),
    Edit(
        _TARGET,
        """
            module.named_buffers(recurse=False), module.named_parameters(recurse=False)
        """,
        """
            module.named_buffers(recurse=False),
            module.named_parameters(recurse=False, remove_duplicate=False),
        """,
    ),
)
