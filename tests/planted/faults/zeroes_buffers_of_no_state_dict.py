"""A group zeroes the buffers of its modules that are in no state dict, after their forward."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    post_forward = FSDPParamGroup.post_forward

    def wrong(self, module, inputs, output):
        for below in module.modules():
            for name in below._non_persistent_buffers_set:
                below.get_buffer(name).zero_()
        return post_forward(self, module, inputs, output)

    FSDPParamGroup.post_forward = wrong
