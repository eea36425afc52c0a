"""A prefetch unshards a module whose FSDP root has not run.

``FSDPParamGroup._prefetch_unshard`` (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py)
gathers its target with the streams that the first forward of the target's FSDP root makes, and
with dtypes that it determines. Where the target belongs to another root that has not run yet,
there are none: an AttributeError. ``FSDPModule.unshard`` of the same module works, as it calls
``lazy_init`` of the group and gathers on the current stream.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "A prefetch unshards a module whose FSDP root has not run"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "Sets the FSDP modules for which this FSDP module should explicitly prefetch all-gathers in "
    "forward.",
    "FSDPModule.set_modules_to_forward_prefetch",
)
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="none found",
        query=(
            "FSDPCommContext object has no attribute all_gather_copy_in_stream "
            "set_modules_to_forward_prefetch"
        ),
        date="2026-11-23",
    ),
)
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
