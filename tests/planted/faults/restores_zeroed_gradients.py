"""What ``zero_grad`` has removed between a forward and its backward comes back in the backward."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    post_forward, pre_backward = FSDPParamGroup.post_forward, FSDPParamGroup.pre_backward

    def remembers(self, *arguments):
        for param in self.fsdp_params:
            param.remembered = param.sharded_param.grad
        return post_forward(self, *arguments)

    def restores(self, *arguments):
        for param in self.fsdp_params:
            if param.sharded_param.grad is None:
                param.sharded_param.grad = getattr(param, "remembered", None)
        return pre_backward(self, *arguments)

    FSDPParamGroup.post_forward = remembers
    FSDPParamGroup.pre_backward = restores
