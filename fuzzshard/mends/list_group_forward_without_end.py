"""x"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "A list group that runs in part by itself never ends its forward"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "If ``True``, then this reshards parameters after forward and re-all-gathers in backward.",
    "fully_shard, reshard_after_forward",
)
TORCH = Releases(since="2.11")
PUBLIC = (Public(),)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_state:_register_group_forward_hooks",
        """
        if len(modules_to_run) == 0:
            return post_hook(hook_module, input, output)
        """,
        """
        state = post_hook.__self__
        if state._state_ctx.iter_forward_root is state:
            modules_to_run.clear()
        if len(modules_to_run) == 0:
            return post_hook(hook_module, input, output)
        """,
    ),
)
