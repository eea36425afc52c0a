"""Under ``inference_mode`` the state dict of DDP has copies, which do not follow later steps."""

import torch
from torch.nn.parallel import DistributedDataParallel


def apply() -> None:
    state_dict = DistributedDataParallel.state_dict

    def wrong(self, *args, **kwargs):
        state = state_dict(self, *args, **kwargs)
        if not torch.is_inference_mode_enabled():
            return state
        return {name: value.clone() for name, value in state.items()}

    DistributedDataParallel.state_dict = wrong
