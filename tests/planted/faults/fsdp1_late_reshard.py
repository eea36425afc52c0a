"""FSDP1 leaves the resharding of frozen units to the end of backward."""

from torch.distributed.fsdp import _runtime_utils


def apply() -> None:
    _runtime_utils._register_post_backward_reshard_only_hook = lambda *args: None
