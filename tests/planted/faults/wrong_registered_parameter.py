"""What stays registered after a forward is one larger than what the forward used."""

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    post_forward = FSDPParamGroup.post_forward

    def wrong(self, module, inputs, output):
        output = post_forward(self, module, inputs, output)
        with torch.no_grad():
            for param in self.fsdp_params if self.is_unsharded else ():
                param.unsharded_param.data.add_(1)
        return output

    FSDPParamGroup.post_forward = wrong
