"""After a cast gradients are still reduced in the dtype that parameters had when they were
wrapped.
"""

from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam


def apply() -> None:
    init, init_dtype_attrs = FSDPParam.__init__, FSDPParam.init_dtype_attrs

    def remember(self, param, *args, **kwargs):
        init(self, param, *args, **kwargs)
        self.first_dtype = param.dtype

    def wrong(self, mp_policy):
        init_dtype_attrs(self, mp_policy)
        self.reduce_dtype = self.first_dtype

    FSDPParam.__init__ = remember
    FSDPParam.init_dtype_attrs = wrong
