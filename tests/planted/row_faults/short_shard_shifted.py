"""The gradient of a shard with fewer rows than its padding has begins at another row."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    finalize_backward = FSDPParamGroup.finalize_backward

    def wrong(self):
        finalize_backward(self)
        for param in self.fsdp_params:
            gradient = param.sharded_param.grad
            if (
                gradient is not None
                and 0 < len(gradient._local_tensor) < param.padded_sharded_param_size[0]
            ):
                gradient._local_tensor.copy_(gradient._local_tensor.roll(1, 0))

    FSDPParamGroup.finalize_backward = wrong
