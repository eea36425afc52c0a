"""The first forward freezes the modules that a wrapped model has got since it was wrapped."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    init, lazy_init = FSDPParamGroup.__init__, FSDPState._lazy_init
    wrapped = set()

    def watched(self, params, modules, *args, **kwargs):
        wrapped.update(id(below) for module in modules for below in module.modules())
        init(self, params, modules, *args, **kwargs)

    def wrong(self):
        lazy_init(self)
        for module in self._modules:
            for below in module.modules():
                if id(below) not in wrapped:
                    below.requires_grad_(False)

    FSDPParamGroup.__init__, FSDPState._lazy_init = watched, wrong
