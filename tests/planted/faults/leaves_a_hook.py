"""Every forward of a wrapped module leaves a hook at it."""

from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    root_pre_forward = FSDPState._root_pre_forward

    def wrong(self, module, args, kwargs):
        module.register_forward_hook(lambda *_: None)
        return root_pre_forward(self, module, args, kwargs)

    FSDPState._root_pre_forward = wrong
