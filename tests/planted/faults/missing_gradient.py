"""The first parameter of a group loses its gradient at the end of the backward."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    finalize_backward = FSDPParamGroup.finalize_backward

    def wrong(self):
        finalize_backward(self)
        self.fsdp_params[0].sharded_param.grad = None

    FSDPParamGroup.finalize_backward = wrong
