"""``copy.deepcopy`` of a model drops the checkpoint wrapper of a parametrized module.

``ActivationWrapper.__getattr__`` hands every attribute that it lacks on to the module within
(torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py). ``copy.deepcopy`` asks the wrapper
for ``__deepcopy__``, and gets the method of a parametrized module, which has one
(``_inject_new_class`` in torch/nn/utils/parametrize.py). So it copies the module alone. The copy
checkpoints nothing, and its modules are not those of the original one by one.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "checkpoint_wrapper: copy.deepcopy returns no wrapper when the module is parametrized"
COMPONENT = "checkpoint"
WEIGHT = "exotic"
CONTRACT = Promise(
    "Just emulate a standard deepcopy procedure when __deepcopy__ doesn't exist in the current "
    "class.",
    "torch/nn/utils/parametrize.py, _inject_new_class",
)
SETUP = (
    "A layer with ``nn.utils.parametrizations.weight_norm`` is in a ``checkpoint_wrapper``, and "
    "somebody copies the model: a running average of weights, a teacher, the values for a model on "
    "the meta device. The copy has no activation checkpointing there, and other names of "
    "parameters in ``named_modules``."
)
WORKAROUND = "Copy the model first, and wrap its modules for checkpointing after that."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/pull/78854",
        "near: where the wrapper began to hand attributes on",
        "checkpoint_wrapper deepcopy parametrized module loses ActivationWrapper __getattr__ "
        "__deepcopy__",
        "2026-11-27",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper:ActivationWrapper.__getattr__",
        """
        return getattr(self._checkpoint_wrapped_module, name)
        """,
        """
        if name == "__deepcopy__":
            raise
        return getattr(self._checkpoint_wrapped_module, name)
        """,
    ),
)
