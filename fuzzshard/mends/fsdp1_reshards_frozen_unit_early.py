"""FSDP1 reshards a frozen unit before the pre-backward hooks of outputs have run.

The hook that reshards a frozen unit when the gradients of its inputs have come is registered
before its forward (``_register_post_backward_reshard_only_hook`` in
``torch/distributed/fsdp/_runtime_utils.py``). Where an input is an output, too, of the unit or of
the root, it runs before the pre-backward hook of that output, which finds the unit, or the root,
in a state of backward: a ValueError. Where the unit's own output is unused and its input is not,
no pre-backward comes before, and backward prefetching unshards it once more: with
``use_orig_params`` resharding has cleared the views that this looks for
(``_use_unsharded_views``): an AttributeError.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1 reshards a frozen unit before the hooks of its outputs run"
COMPONENT = "FSDP1"
CONTRACT = Promise(
    "to ensure that all gradients that may depend on the parameters have been computed before "
    "resharding",
    "torch/distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook; plain "
    "autograd "
    "allows it",
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/117510",
        "closed: near, a frozen unit is resharded that no pre-backward has unsharded; PR 117997 "
        "made "
        "resharding "
        "idempotent and left its time as it is",
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
