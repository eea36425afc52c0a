"""``fully_shard`` forgets to reshard after a forward."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply():
    FSDPParamGroup.post_forward = lambda self, module, input, output: output
