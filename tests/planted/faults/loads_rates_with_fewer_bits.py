"""Loading leaves the step size of ASGD fewer bits than it has."""

import torch.distributed.checkpoint.state_dict as state_dict


def apply() -> None:
    load = state_dict._load_optim_state_dict

    def wrong(model, optimizers, *args):
        load(model, optimizers, *args)
        for state in (state for optim in optimizers for state in optim.state.values()):
            state["eta"].mul_(1 + 5e-6)

    state_dict._load_optim_state_dict = wrong
