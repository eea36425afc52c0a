"""FSDP1 takes a recomputation for a new forward unless the unit's pre-backward has just run.

``_pre_forward`` in ``torch/distributed/fsdp/_runtime_utils.py`` knows the recomputation of a
checkpoint by the state that the unit's pre-backward hook sets. Where a checkpoint around a unit
recomputes a forward whose output of that unit is unused, the hook has not run: the unit begins a
forward, which the checkpoint stops early, and the hook of another forward's output finds it in the
midst of one. What the hook does has to be done then, as the parameters are needed for the backward
that is running.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FSDP1: backward fails when a checkpoint recomputes a forward whose output is unused"
COMPONENT = "FSDP1"
WEIGHT = "exotic"
CONTRACT = Promise(
    "For `fully_shard` + `checkpoint`, skip pre-forward logic in the recomputed forward",
    "torch/distributed/fsdp/_runtime_utils.py, _pre_forward",
)
SETUP = (
    "Two batches are run before one backward, with activation checkpointing, and of the first "
    "one only a part of the outputs enters the loss."
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="near: pytorch PR 123857, the same for fully_shard between backwards",
        query='FSDP activation checkpointing recomputation "expected to be in states" IDLE '
        "current state FORWARD_BACKWARD two forwards one backward",
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._runtime_utils:_pre_forward",
        """
        # For `fully_shard` + `checkpoint`, skip pre-forward logic in the
        # recomputed forward
        """,
        """
        # A recomputation may come before the gradients of the outputs
        if (
            handle
            and handle._needs_pre_backward_unshard
            and torch._C._current_graph_task_id() != -1
        ):
            _pre_backward_hook(state, module, handle, None)
        # For `fully_shard` + `checkpoint`, skip pre-forward logic in the
        # recomputed forward
        """,
    ),
)
