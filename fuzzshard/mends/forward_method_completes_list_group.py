"""x"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "A forward method completes its list group by itself"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "x",
    "x",
)
TORCH = Releases(since="2.13")
PUBLIC = (Public(),)
EDITS = (
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
