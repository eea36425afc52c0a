"""A ``grad_dtype`` that is set on a sharded parameter is forgotten at the first forward."""

from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam


def apply() -> None:
    reset = FSDPParam.reset_sharded_param

    def wrong(self):
        if self.sharded_param._has_grad_dtype_override:
            self.sharded_param.grad_dtype = self.sharded_param.dtype
        reset(self)

    FSDPParam.reset_sharded_param = wrong
