"""A group normalizes over all features where its module has several groups of them."""

from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    pre_forward = FSDPParamGroup.pre_forward

    def wrong(self, module, args, kwargs):
        for each in module.modules():
            if isinstance(each, nn.GroupNorm):
                each.num_groups = 1
        return pre_forward(self, module, args, kwargs)

    FSDPParamGroup.pre_forward = wrong
