"""A gradient that waits for its reduction is doubled whenever a backward is over."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    post_backward = FSDPParamGroup.post_backward

    def wrong(self, *unused):
        post_backward(self, *unused)
        for param in [] if self.reduce_grads else self.fsdp_params:
            if param._unsharded_param.grad is not None:
                param._unsharded_param.grad.mul_(2)

    FSDPParamGroup.post_backward = wrong
