"""A registry keeps every FSDP root for ever."""

from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

roots = []


def apply() -> None:
    lazy_init = FSDPState._lazy_init

    def wrong(self):
        lazy_init(self)
        roots.append(self)

    FSDPState._lazy_init = wrong
