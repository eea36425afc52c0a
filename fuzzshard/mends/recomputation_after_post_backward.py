"""x"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "A recomputation unshards a group that had its post-backward already"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "After backward, parameters are sharded",
    "x",
)
TORCH = Releases(since="2.11")
PUBLIC = (Public(),)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._root_post_backward_final_callback",
        """
        fsdp_param_group._training_state = TrainingState.IDLE
        """,
        """
        elif fsdp_param_group.reshard_after_backward:
            fsdp_param_group.reshard()
        fsdp_param_group._training_state = TrainingState.IDLE
        """,
    ),
)
