"""x"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "A module whose recomputation stops early stays in its forward state"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "After backward, parameters are sharded",
    "x",
)
TORCH = Releases(since="2.11")
PUBLIC = (Public(),)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState.init",
        """
        self._post_forward, prepend=False
        """,
        """
        self._post_forward, prepend=False, always_call=True
        """,
    ),
)
