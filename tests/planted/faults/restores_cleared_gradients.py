"""A gradient that a hook of the user has cleared is put back after the reduction."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


class Keeping:
    """A hook after which a parameter has the gradient that it had before."""

    def __init__(self, hook):
        self.hook = hook

    def __call__(self, parameter):
        gradient = parameter.grad
        self.hook(parameter)
        parameter.grad = gradient


def apply() -> None:
    pre_backward = FSDPParamGroup.pre_backward

    def wrong(self, *arguments):
        for fsdp_param in self.fsdp_params:
            hooks = fsdp_param.sharded_param._post_accumulate_grad_hooks or {}
            for key, hook in hooks.items():
                hooks[key] = hook if isinstance(hook, Keeping) else Keeping(hook)
        return pre_backward(self, *arguments)

    FSDPParamGroup.pre_backward = wrong
