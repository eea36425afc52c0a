"""x"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "The output dtype of a list group is applied to the output of the root"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "x",
    "x",
)
TORCH = Releases(since="2.13")
PUBLIC = (Public(),)
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
