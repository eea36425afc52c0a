"""The recomputation of a module under ``replicate`` counts as its next iteration.

A checkpoint around the module recomputes it with its hooks, in the middle of the backward. The
hooks of ``replicate`` (``torch/distributed/_composable/replicate.py``) call
``DistributedDataParallel._pre_forward``, which asks the reducer to have finished the iteration
before: RuntimeError, "Expected to have finished reduction in the prior iteration". A recomputation
repeats a forward and begins nothing; inputs are to be moved and cast as they were.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "replicate: RuntimeError in backward when a checkpoint recomputes the module"
COMPONENT = "replicate"
WEIGHT = "exotic"
CONTRACT = Promise(
    "the unsaved tensors are recomputed by re-invoking",
    "torch.utils.checkpoint.checkpoint",
)
SETUP = "``replicate`` wraps a block, and activation checkpointing is applied around it."
WORKAROUND = "Checkpoint what is within the module that ``replicate`` wraps."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public("https://github.com/pytorch/pytorch/issues/70865", "near: wants the same for DDP"),
)
_DDP = "torch.nn.parallel.distributed:DistributedDataParallel"
EDITS = (
    Edit(
        f"{_DDP}._pre_forward",
        """
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
        """,
        """
        recomputes = torch._C._current_graph_task_id() != -1
        if torch.is_grad_enabled() and self.require_backward_grad_sync and not recomputes:
        """,
    ),
    Edit(
        f"{_DDP}._pre_forward",
        """
        if torch.is_grad_enabled() and self.reducer._rebuild_buckets():
        """,
        """
        if torch.is_grad_enabled() and not recomputes and self.reducer._rebuild_buckets():
        """,
    ),
    Edit(
        "torch.distributed._composable.replicate:_ReplicateState.forward_pre_hook",
        """
        DistributedDataParallel._active_ddp_module = self._ddp
        """,
        """
        if torch._C._current_graph_task_id() == -1:  # a recomputation may stop before its end
            DistributedDataParallel._active_ddp_module = self._ddp
        """,
    ),
    Edit(
        "torch.distributed._composable.replicate:_ReplicateState.forward_post_hook",
        """
        DistributedDataParallel._active_ddp_module = None
        """,
        """
        DistributedDataParallel._active_ddp_module = None
        if torch._C._current_graph_task_id() != -1:
            return output
        """,
    ),
)
