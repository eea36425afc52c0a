"""The specs of gradients say another dtype than the gradients have."""

import dataclasses

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor._dtensor_spec import TensorMeta


def apply() -> None:
    to_sharded_dtensor = FSDPParam.to_sharded_dtensor

    def wrong(self, tensor):
        made = to_sharded_dtensor(self, tensor)
        if not hasattr(self, "sharded_param"):  # that of the parameter itself
            return made
        said = TensorMeta(made.shape, made.stride(), torch.bfloat16)
        made._spec = dataclasses.replace(made._spec, tensor_meta=said)
        return made

    FSDPParam.to_sharded_dtensor = wrong
