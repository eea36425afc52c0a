"""``set_gradient_divide_factor`` raises an error that no documentation mentions."""

from torch.distributed.fsdp import FSDPModule


def apply() -> None:
    def set_gradient_divide_factor(self: FSDPModule, factor: float) -> None:
        raise KeyError(factor)

    FSDPModule.set_gradient_divide_factor = set_gradient_divide_factor
