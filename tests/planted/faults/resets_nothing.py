"""``reset_iter_state`` leaves a group within a forward or backward, and its gradients where they
are.
"""

from torch.distributed.fsdp import FSDPModule


def apply() -> None:
    def reset(self):
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    FSDPModule.reset_iter_state = reset
