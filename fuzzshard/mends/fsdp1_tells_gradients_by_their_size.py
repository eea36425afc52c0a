"""FSDP1 tells an accumulated shard of a gradient from an unsharded gradient by its size.

``prepare_gradient_for_backward`` in ``torch/distributed/fsdp/_flat_param.py`` puts the reduced
gradient of earlier backwards aside if it has not the size of an unsharded one. The sizes are equal
for a flat parameter of one element: the next backward accumulates into the reduced gradient and
reduces the sum again, which divides the first part by the number of ranks once more. With
``use_orig_params`` the gradient is handed out as an unsharded one after a forward as well
(``_use_sharded_flat_param``).
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1: the accumulated gradient is reduced twice when a flat parameter has one element"
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "future calls to :func:`backward` will accumulate (add) gradients into it", "torch.Tensor.grad"
)
SETUP = (
    "A learned scalar, such as the temperature of a contrastive loss, is a unit of its own, and"
    " gradients are accumulated without ``no_sync()``."
)
WORKAROUND = "Leave the scalar in the unit around it, or accumulate under ``no_sync()``."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="near: pytorch PR 73535, which added accumulation without no_sync() and tells the "
        "two by their size",
        query="FSDP single element parameter gradient accumulation wrong flat_param numel 1 "
        "prepare_gradient_for_backward",
        date="2026-11-23",
    ),
)
_FLAT = "torch.distributed.fsdp._flat_param:FlatParamHandle"
EDITS = (
    Edit(
        f"{_FLAT}.prepare_gradient_for_optim",
        """
        if flat_param.grad is not None:
            cast_grad_to_param_dtype_if_needed(flat_param)
        """,
        """
        if flat_param.grad is not None:
            cast_grad_to_param_dtype_if_needed(flat_param)
            flat_param.grad._is_reduced = True
        """,
    ),
    Edit(
        f"{_FLAT}.prepare_gradient_for_backward",
        """
        flat_param.grad.size() != flat_param._unpadded_unsharded_size
        """,
        """
        flat_param.grad.size() != flat_param._unpadded_unsharded_size
        or hasattr(flat_param.grad, "_is_reduced")
        """,
    ),
    Edit(
        f"{_FLAT}._use_sharded_flat_param",
        """
        and flat_param.grad.shape == flat_param._unpadded_unsharded_size
        """,
        """
        and flat_param.grad.shape == flat_param._unpadded_unsharded_size
        and not hasattr(flat_param.grad, "_is_reduced")
        """,
    ),
)
