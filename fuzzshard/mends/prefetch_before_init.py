"""x"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "A prefetch unshards a module that was not initialised"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "x",
    "x",
)
TORCH = Releases(since="2.11")
PUBLIC = (Public(),)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup._prefetch_unshard",
        """
        async_op = target_fsdp_param_group.unshard_async_op
        """,
        """
        target_fsdp_param_group.lazy_init()
        async_op = target_fsdp_param_group.unshard_async_op
        """,
    ),

    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPCommContext.get_all_gather_streams",
        """
        if not async_op and training_state in (
        """,
        """
        if hasattr(self, "all_gather_stream") and not async_op and training_state in (
        """,
    ),
)
