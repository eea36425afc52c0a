"""A group adds one to the floating-point buffers of its modules after their forward."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    post_forward = FSDPParamGroup.post_forward

    def wrong(self, module, inputs, output):
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.data.add_(1)
        return post_forward(self, module, inputs, output)

    FSDPParamGroup.post_forward = wrong
