"""A gradient that a hook of the user has cleared is put back after the reduction."""

from torch.distributed.fsdp._fully_shard import _fsdp_param_group


def apply() -> None:
    foreach_reduce = _fsdp_param_group.foreach_reduce

    def keeping(hook):
        def wrong(parameter):
            gradient = parameter.grad
            hook(parameter)
            parameter.grad = gradient

        return wrong

    def wrong(fsdp_params, *args, **kwargs):
        kept = {}
        for fsdp_param in fsdp_params:
            if hooks := fsdp_param.sharded_param._post_accumulate_grad_hooks:
                kept[fsdp_param] = dict(hooks)
                hooks.update({key: keeping(hook) for key, hook in hooks.items()})
        result = foreach_reduce(fsdp_params, *args, **kwargs)
        for fsdp_param, hooks in kept.items():
            fsdp_param.sharded_param._post_accumulate_grad_hooks.update(hooks)
        return result

    _fsdp_param_group.foreach_reduce = wrong
