"""Gradients are reduced in the dtype that they were computed in, whatever ``reduce_dtype``
says.
"""

from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam


def apply() -> None:
    init_dtype_attrs = FSDPParam.init_dtype_attrs

    def wrong(self, mp_policy):
        init_dtype_attrs(self, mp_policy)
        self.reduce_dtype = self.param_dtype

    FSDPParam.init_dtype_attrs = wrong
