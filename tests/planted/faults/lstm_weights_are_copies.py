"""Once gathered, an ``nn.LSTM`` computes with weights that autograd does not follow."""

from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    pre_forward = FSDPParamGroup.pre_forward

    def wrong(self, module, args, kwargs):
        result = pre_forward(self, module, args, kwargs)
        for each in module.modules():
            if isinstance(each, nn.LSTM):
                each._init_flat_weights()
                each._flat_weights = [weight.detach() for weight in each._flat_weights]
        return result

    FSDPParamGroup.pre_forward = wrong
