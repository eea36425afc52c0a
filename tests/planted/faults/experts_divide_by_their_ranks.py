"""A divide factor is lost where parameters were DTensors before ``fully_shard`` sharded them."""

from torch.distributed.fsdp import FSDPModule


def apply() -> None:
    right = FSDPModule.set_gradient_divide_factor

    def wrong(self, factor):
        groups = self._get_fsdp_state()._fsdp_param_groups
        if not any(part.is_dtensor for group in groups for part in group.fsdp_params):
            right(self, factor)

    FSDPModule.set_gradient_divide_factor = wrong
