"""FSDP1 reshards a frozen unit before the pre-backward hooks of outputs have run.

FSDP1 reshards a frozen unit by a hook that runs when the gradients of the unit's inputs have come.
It registers the hook before the forward (``_register_post_backward_reshard_only_hook`` in
``torch/distributed/fsdp/_runtime_utils.py``). If an input is also an output of the unit or of the
root, this hook runs before the pre-backward hook of that output, which then finds the unit or the
root in a state of backward: a ValueError. If the loss uses an input of the unit and not its
output, no pre-backward hook runs first, and backward prefetching unshards the unit once more. With
``use_orig_params`` that needs views which resharding has cleared (``_use_unsharded_views``): an
AttributeError.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1: backward fails when the input of a frozen unit is an output as well"
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "to ensure that all gradients that may depend on the parameters have been computed before "
    "resharding",
    "torch/distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook; plain "
    "autograd allows it",
)
SETUP = (
    "A frozen block returns its input beside its output: the residual stream, or the hidden "
    "states of every layer."
)
WORKAROUND = "Return ``x.clone()`` in place of the input."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/117510",
        "closed: near, a frozen unit is resharded that no pre-backward has unsharded; PR 117997 "
        "made resharding idempotent and left its time as it is",
        "FSDP frozen module input returned as output ValueError expected to be in states IDLE "
        "FORWARD_BACKWARD post_backward_reshard_only",
        "2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._runtime_utils:_post_backward_reshard_only_hook",
        """
        # overwrite IDLE state for post-backward prefetching
        state.training_state = TrainingState.FORWARD_BACKWARD
        handle._training_state = HandleTrainingState.BACKWARD_POST
        """,
        """
        # overwrite IDLE state for post-backward prefetching, but not that
        # of `state`, as `_pre_backward_hook` may come later, too
        handle._training_state = HandleTrainingState.BACKWARD_POST
        """,
    ),
    Edit(
        "torch.distributed.fsdp._flat_param:FlatParamHandle._use_unsharded_views",
        """
        tensor.data = view
        param_var = tensor
        """,
        """
        if tensor is not None:  # else frozen and resharded in this backward
            tensor.data = view
            param_var = tensor
        """,
    ),
)
