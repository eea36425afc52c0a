"""Once gathered, a weight that is parametrized by its norm is twice as long."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.nn.utils.parametrize import is_parametrized


def apply() -> None:
    pre_forward = FSDPParamGroup.pre_forward

    def wrong(self, module, args, kwargs):
        for each in module.modules():
            if is_parametrized(each, "weight"):
                type(each).weight = property(lambda self: 2 * self.parametrizations.weight())
        return pre_forward(self, module, args, kwargs)

    FSDPParamGroup.pre_forward = wrong
