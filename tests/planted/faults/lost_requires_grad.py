"""Sharding a bias freezes it."""

from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam


def apply() -> None:
    init = FSDPParam.__init__

    def wrong(self, param, module_info, *args, **kwargs):
        init(self, param, module_info, *args, **kwargs)
        if module_info.param_name == "bias":
            self.sharded_param.requires_grad_(False)

    FSDPParam.__init__ = wrong
