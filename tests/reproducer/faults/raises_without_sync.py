"""``fully_shard`` raises in a backward that is not to reduce gradients."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply():
    finish = FSDPParamGroup.post_backward

    def post_backward(self, *unused):
        if not self.reduce_grads:
            raise RuntimeError("planted: no reduction wanted")
        return finish(self, *unused)

    FSDPParamGroup.post_backward = post_backward
