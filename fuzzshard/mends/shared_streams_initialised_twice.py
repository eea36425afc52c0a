"""A root that initialises empties the order of forwards that it shares with others.

Every FSDP root calls ``FSDPCommContext.lazy_init`` in its first forward
(torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py), which makes the streams and an empty
``post_forward_order``. With ``share_comm_ctx`` the context is that of other roots, too: what ran
before has its places in an order that is gone, and the prefetch of its backward reads beyond the
end, an IndexError. One that is initialised already is to be left as it is.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "share_comm_ctx: IndexError in backward when a second root runs its first forward"
COMPONENT = "fully_shard"
WEIGHT = "bug"
CONTRACT = Promise(
    "Share cuda streams for multiple FSDPModules",
    "share_comm_ctx",
)
SETUP = (
    "Pipeline parallelism with several chunks on a rank, each of them an FSDP root, which share"
    " streams as the docstring of ``share_comm_ctx`` proposes."
)
WORKAROUND = "Do not share the context."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        says="none found",
        query=(
            "fully_shard share_comm_ctx post_forward_order list index out of range "
            "_backward_prefetch pipeline parallel"
        ),
        date="2026-11-23",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPCommContext.lazy_init",
        """
        self.device_handle = _get_device_handle(device.type)
        """,
        """
        if hasattr(self, "all_gather_stream"):
            return
        self.device_handle = _get_device_handle(device.type)
        """,
    ),
)
