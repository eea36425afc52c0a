"""A shard is moved to other memory at the first forward: a state dict from before keeps the old
one.
"""

from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam


def apply() -> None:
    reset = FSDPParam.reset_sharded_param

    def wrong(self):
        reset(self)
        length = self.sharded_param._local_tensor.size(0)
        self._sharded_param_data = self._sharded_param_data.clone()
        padded = self._sharded_param_data.view(self.padded_sharded_param_size)
        self.sharded_param._local_tensor = padded.narrow(0, 0, length)

    FSDPParam.reset_sharded_param = wrong
