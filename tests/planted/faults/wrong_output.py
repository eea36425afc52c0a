"""A group adds one to what its module returns."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    post_forward = FSDPParamGroup.post_forward

    def wrong(self, module, inputs, output):
        return post_forward(self, module, inputs, output) + 1

    FSDPParamGroup.post_forward = wrong
