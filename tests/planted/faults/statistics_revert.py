"""The end of a backward takes the statistics of batch norms back to their first values."""

from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def apply() -> None:
    post_backward = FSDPState._root_post_backward_final_callback

    def wrong(self):
        post_backward(self)
        for module in (m for root in self._modules for m in root.modules()):
            if isinstance(module, nn.BatchNorm1d):
                module.reset_running_stats()

    FSDPState._root_post_backward_final_callback = wrong
