"""The end of a backward doubles the means of batch norms."""

from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    post_backward = FSDPState._root_post_backward_final_callback

    def wrong(self):
        post_backward(self)
        for module in (m for root in self._modules for m in root.modules()):
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.mul_(2)

    FSDPState._root_post_backward_final_callback = wrong
