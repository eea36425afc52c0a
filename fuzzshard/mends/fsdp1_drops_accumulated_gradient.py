"""FSDP1 drops the accumulated gradient of a unit whose parameters a backward does not come to.

The pre-backward puts the reduced gradient of earlier backwards aside
(``prepare_gradient_for_backward`` in ``torch/distributed/fsdp/_flat_param.py``). Where the
backward comes to an output of the unit and to none of its parameters, no post-backward follows,
and ``prepare_gradient_for_optim`` deletes what was put aside in place of putting it back. The
gradient is None and the earlier microbatches are lost. With ``use_orig_params`` the parameters'
own gradients bring it back in the next forward.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "FSDP1: the accumulated gradient is lost when a backward reaches outputs of a unit, not its"
    " parameters"
)
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "future calls to :func:`backward` will accumulate (add) gradients into it", "torch.Tensor.grad"
)
SETUP = (
    "Gradients are accumulated without ``no_sync()``, to save memory, and layers are dropped at"
    " random: in the last microbatch a block returns its input as it is. What the earlier "
    "microbatches left for it is lost."
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="near: pytorch PR 85480, whose review asks for putting the old gradient back",
        query="FSDP accumulated gradient without no_sync lost when module's parameters unused in "
        "backward prepare_gradient_for_optim saved_grad_shard",
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._flat_param:FlatParamHandle.prepare_gradient_for_optim",
        """
        if flat_param._post_backward_called:  # type: ignore[attr-defined]
        """,
        """
        if flat_param._post_backward_called or flat_param.grad is None:
        """,
    ),
)
