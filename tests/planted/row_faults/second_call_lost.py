"""From the second call of a module in one forward on, its parameters get no gradient."""

import torch
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    pre_forward = FSDPParamGroup.pre_forward

    def wrong(self, module, args, kwargs):
        again = self._training_state == TrainingState.IDLE and self._post_forward_indices
        result = pre_forward(self, module, args, kwargs)
        for param in self.fsdp_params if again and torch.is_grad_enabled() else ():
            param._setattr_on_modules(torch.nn.Parameter(param.unsharded_param.detach()))
        return result

    FSDPParamGroup.pre_forward = wrong
