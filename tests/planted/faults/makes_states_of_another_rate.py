"""The states that a save makes have three times the learning rate."""

import torch.distributed.checkpoint.state_dict as state_dict


def apply() -> None:
    init = state_dict._init_optim_state

    def wrong(optim):
        made = not optim.state
        init(optim)
        for state in optim.state.values() if made else ():
            state["eta"].mul_(3)

    state_dict._init_optim_state = wrong
