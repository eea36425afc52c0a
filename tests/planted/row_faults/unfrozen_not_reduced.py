"""Parameters that are frozen in the first forward are never reduced."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    lazy_init, post_backward = FSDPParamGroup.lazy_init, FSDPParamGroup.post_backward

    def remember(self):
        lazy_init(self)
        for param in self.fsdp_params:
            param.frozen_at_first = not param.sharded_param.requires_grad

    def wrong(self, *unused):
        for param in self.fsdp_params:
            if param.frozen_at_first and hasattr(param, "_unsharded_param"):
                param._unsharded_param.grad = None
        post_backward(self, *unused)

    FSDPParamGroup.lazy_init = remember
    FSDPParamGroup.post_backward = wrong
