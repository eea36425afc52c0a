"""x"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "A root that initialises empties the order of forwards that it shares"
COMPONENT = "fully_shard"
CONTRACT = Promise(
    "x",
    "x",
)
TORCH = Releases(since="2.11")
PUBLIC = (Public(),)
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
