"""A group with a frozen parameter doubles the gradients of the others."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    post_backward = FSDPParamGroup.post_backward

    def wrong(self, *unused):
        if any(not param.sharded_param.requires_grad for param in self.fsdp_params):
            for param in self.fsdp_params:
                whole = getattr(param, "_unsharded_param", None)
                if whole is not None and whole.grad is not None:
                    whole.grad.mul_(2)
        return post_backward(self, *unused)

    FSDPParamGroup.post_backward = wrong
