"""x"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "The output of an all-gather outlives backward"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "we have the last FSDP state flush the reference to avoid holding onto memory after forward",
    "x",
)
TORCH = Releases(since="2.11", until="2.15")
PUBLIC = (Public(),)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._root_post_backward_final_callback",
        """
        self._state_ctx.post_backward_final_callback_queued = False
        """,
        """
        self._comm_ctx.all_gather_state = None
        self._state_ctx.post_backward_final_callback_queued = False
        """,
    ),
)
