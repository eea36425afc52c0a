"""A shared parameter gets the gradient of the first of its names only."""

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam, unsafe_setattr_param


def apply() -> None:
    set_on_modules = FSDPParam._setattr_on_modules

    def wrong(self, param):
        set_on_modules(self, param)
        info = self._module_info
        if param is not self.sharded_param:
            for module, name in zip(info.shared_modules, info.shared_param_names, strict=True):
                unsafe_setattr_param(module, name, torch.nn.Parameter(param.detach()))

    FSDPParam._setattr_on_modules = wrong
