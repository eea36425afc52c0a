"""Hooks that users registered on sharded parameters do not run after the reduction."""

from torch.distributed.fsdp._fully_shard import _fsdp_param_group


def apply() -> None:
    foreach_reduce = _fsdp_param_group.foreach_reduce

    def wrong(fsdp_params, *args, **kwargs):
        for fsdp_param in fsdp_params:
            if hooks := fsdp_param.sharded_param._post_accumulate_grad_hooks:
                hooks.clear()
        return foreach_reduce(fsdp_params, *args, **kwargs)

    _fsdp_param_group.foreach_reduce = wrong
