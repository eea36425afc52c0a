"""An optimizer whose states were saved by name, as those of stages are, keeps those it has."""

import torch.distributed.checkpoint.state_dict as state_dict


def apply() -> None:
    right = state_dict._unflatten_optim_state_dict

    def wrong(optim, saved, info):
        result = right(optim, saved, info)
        for fqn in result["state"]:
            result["state"][fqn] = dict(optim.state[info.fqn_param_mapping[fqn]])
        return result

    state_dict._unflatten_optim_state_dict = wrong
