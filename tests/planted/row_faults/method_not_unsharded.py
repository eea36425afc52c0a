"""``register_fsdp_forward_method`` does nothing."""

from torch.distributed.fsdp import register_fsdp_forward_method


def apply() -> None:
    register_fsdp_forward_method.__code__ = (lambda module, method_name: None).__code__
