"""The output dtype of a list group that ran in part is applied to the output of the root.

``FSDPState._force_complete_incomplete_states``
(torch/distributed/fsdp/_fully_shard/_fsdp_state.py) ends the forward of groups of which not every
module has run, from the post-forward of the root. It casts the root's output to the
``output_dtype`` of each of these groups, although the outputs of their own modules have been cast
already. In a recomputation nobody does that, so a checkpoint of the root finds other dtypes.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "The output dtype of a list group that ran in part is applied to the output of the root"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "``mp_policy.cast_forward_inputs`` and ``mp_policy.output_dtype`` both apply per module in "
    "the group",
    "fully_shard",
)
TORCH = Releases(since="2.13")
PUBLIC = (
    Public(
        link="https://github.com/pytorch/pytorch/pull/180428",
        says="near: merged, introduced it",
        query=(
            "register_fsdp_forward_method fully_shard group of modules post_forward output_dtype "
            "cast "
            "root output"
        ),
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._force_complete_incomplete_states",
        """
        output = state._cast_output_dtype(output)
        state._modules_to_run_forward.clear()
        """,
        """
        state._modules_to_run_forward.clear()
        """,
    ),
)
