"""FSDP1 drops the gradients of ``no_sync()`` of parameters that had none before.

With ``use_orig_params`` a mask says which parameters have no gradient. A forward sets it after a
``zero_grad()`` of some of a unit's parameters, or where some are frozen (``_writeback_tensor`` in
``torch/distributed/fsdp/_flat_param.py``). It is reset where a backward reduces
(``_reset_is_grad_none``), and not where one accumulates under ``no_sync()``. With ``NO_SHARD``, or
what a group of one rank makes of the others, the next forward takes the accumulated gradient for
None and drops it (``_use_sharded_grad_views``).
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1.no_sync: accumulated gradients are lost when the parameters had none before"
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "gradients will be accumulated in module variables, which will later be synchronized",
    "FullyShardedDataParallel.no_sync",
)
SETUP = (
    "One rank, as in debugging, or ``NO_SHARD``; a part of the model is frozen, and gradients "
    "are accumulated under ``no_sync()``. Only the last microbatch counts for some parameters."
)
WORKAROUND = "Use DDP in place of ``NO_SHARD``."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="near: pytorch PR 90546, which mends no_sync() with use_orig_params and leaves the "
        "mask",
        query="FSDP use_orig_params NO_SHARD gradient None mask no_sync requires_grad unfreeze "
        "gradient lost _is_grad_none_mask",
        date="2026-11-22",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._runtime_utils:_post_backward_hook",
        """
        handle._use_unsharded_grad_views()
        """,
        """
        handle._reset_is_grad_none()
        handle._use_unsharded_grad_views()
        """,
    ),
)
