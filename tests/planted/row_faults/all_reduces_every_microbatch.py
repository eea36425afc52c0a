"""``set_requires_all_reduce`` does nothing: every microbatch is all-reduced, to the same sum."""

from torch.distributed.fsdp import FSDPModule


def apply() -> None:
    FSDPModule.set_requires_all_reduce = lambda self, value, *, recurse=True: None
