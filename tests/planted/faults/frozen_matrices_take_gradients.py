"""A frozen matrix takes the gradients of the smaller matrices beside it in its group."""

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup


def apply() -> None:
    finalize_backward = FSDPParamGroup.finalize_backward

    def wrong(self):
        finalize_backward(self)
        sharded = [fsdp_param.sharded_param for fsdp_param in self.fsdp_params]
        frozen = [p.numel() for p in sharded if p.ndim == 2 and not p.requires_grad]
        for p in sharded:
            if p.ndim == 2 and p.requires_grad and p.numel() < max(frozen, default=0):
                p.grad = None

    FSDPParamGroup.finalize_backward = wrong
