"""A forward method ends the forward of its list group, and the end of the root's forward does so
again.

``register_fsdp_forward_method`` calls ``FSDPState._post_forward`` itself, without the hooks of
list groups that count which modules have run (torch/distributed/fsdp/_fully_shard/_fsdp_state.py).
The module stays among those that have yet to run, so ``_force_complete_incomplete_states`` ends
the forward of the group once more, by then no longer in its forward state: it is sharded, whatever
``reshard_after_forward`` says. So does a method of one module that calls a method of the other.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "register_fsdp_forward_method: reshard_after_forward=False is ignored when the module is in"
    " a list group"
)
COMPONENT = "fully_shard"
WEIGHT = "exotic"
CONTRACT = Promise(
    "If ``False``, then this keeps the unsharded parameters in memory after forward and avoids "
    "the all- gather in backward.",
    "fully_shard, reshard_after_forward",
)
SETUP = (
    "Two modules are one group, and one of them is called by a method of another name, as for "
    "generation. The group is sharded after the forward all the same, and backward gathers it "
    "once more."
)
WORKAROUND = "Wrap the module in a group of its own."
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/180428",
        says="near: merged, introduced it",
        query=(
            "register_fsdp_forward_method fully_shard group of modules post_forward output_dtype "
            "cast root output"
        ),
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._post_forward",
        """
        for fsdp_param_group in self._fsdp_param_groups:
        """,
        """
        has_ended = self._training_state == TrainingState.IDLE
        for fsdp_param_group in () if has_ended else self._fsdp_param_groups:
        """,
    ),
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._post_forward",
        """
        output = self._register_pre_backward_hook(output)
        """,
        """
        self._modules_to_run_forward.clear()
        output = self._register_pre_backward_hook(output)
        """,
    ),
)
