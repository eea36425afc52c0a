"""FSDP1 with CPU offload hands out the gradient of an earlier backward where a backward misses a
unit.

With CPU offload FSDP1 keeps one buffer for the gradient of a flat parameter (``_cpu_grad``), of
zeros at first, and never asks whether this backward has filled it. The end of a backward makes it
the gradient (``prepare_gradient_for_optim`` in ``torch/distributed/fsdp/_flat_param.py``), and
with ``use_orig_params`` resharding after a forward does (``sharded_grad``). A unit that the
backward misses has a gradient of zeros then, or an earlier one in spite of ``zero_grad()``, which
the optimizer applies once more. Where units are not sharded, what ``no_sync()`` has accumulated is
the gradient after a forward; it is on the device still, while the parameters are on the host, those
that share a parameter of another module included.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1 CPUOffload: an earlier gradient is applied again when a backward misses its unit"
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "If the user requests ``zero_grad(set_to_none=True)`` followed by a backward pass, `.grad`s "
    "are guaranteed to be None for params that did not receive a gradient.",
    "Optimizer.zero_grad",
)
SETUP = (
    "An expert or a branch that an iteration does not use, with CPU offload: the optimizer "
    "applies its gradient of an earlier iteration once more, in spite of ``zero_grad()``."
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="near: pytorch PR 87308, which keeps None apart from zeros and leaves offloading",
        query="FSDP cpu_offload flat_param._cpu_grad not reset zero_grad previous iteration "
        "gradient unused module",
        date="2026-11-22",
    ),
)
_FLAT = "torch.distributed.fsdp._flat_param:FlatParamHandle"
EDITS = (
    Edit(
        f"{_FLAT}.prepare_gradient_for_optim",
        """
        flat_param.grad = flat_param._cpu_grad  # type: ignore[attr-defined]
        cast_grad_to_param_dtype_if_needed(flat_param)
        """,
        """
        if flat_param._post_backward_called:  # filled in this backward
            flat_param.grad = flat_param._cpu_grad
            cast_grad_to_param_dtype_if_needed(flat_param)
        """,
    ),
    Edit(
        f"{_FLAT}.sharded_grad",
        """
        if hasattr(flat_param, "_cpu_grad"):
        """,
        """
        if (
            hasattr(flat_param, "_cpu_grad")
            and self._training_state == HandleTrainingState.BACKWARD_POST
        ):
        """,
    ),
    Edit(
        f"{_FLAT}._use_sharded_grad_views",
        """
        if self._keep_low_precision_grads or param.dtype != grad.dtype:
        """,
        """
        if self._keep_low_precision_grads or (param.dtype, param.device) != (grad.dtype, grad.device):
        """,
    ),
    Edit(
        f"{_FLAT}._use_sharded_grad_views",
        """
        if in_sharded_flat_param and param.requires_grad:
        """,
        """
        prim_grad = getattr(prim_module, prim_param_name).grad if in_sharded_flat_param else None
        if param.requires_grad and prim_grad is not None and prim_grad.device != param.device:
            if param.grad is None:
                param.grad = torch.empty_like(param)
            param.grad.data = prim_grad
        elif in_sharded_flat_param and param.requires_grad:
        """,
    ),
)
