"""Every group is gathered once more than needed."""

from torch.distributed.fsdp._fully_shard import _fsdp_param_group


def apply():
    gather = _fsdp_param_group.foreach_all_gather

    def gather_twice(*args, **kwargs):
        gather(*args, **kwargs)
        return gather(*args, **kwargs)

    _fsdp_param_group.foreach_all_gather = gather_twice
