"""``set_reshard_after_forward`` does nothing."""

from torch.distributed.fsdp import FSDPModule


def apply() -> None:
    FSDPModule.set_reshard_after_forward = lambda self, value, recurse=True: None
