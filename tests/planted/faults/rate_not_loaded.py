"""``set_optimizer_state_dict`` sets no learning rate of sharded parameters."""

from torch.distributed.checkpoint import state_dict
from torch.distributed.tensor import DTensor


def apply() -> None:
    set_state = state_dict.set_optimizer_state_dict

    def wrong(model, optimizers, optim_state_dict, **options):
        rates = [group["lr"] for group in optimizers.param_groups]
        set_state(model, optimizers, optim_state_dict, **options)
        for group, rate in zip(optimizers.param_groups, rates, strict=True):
            if any(isinstance(parameter, DTensor) for parameter in group["params"]):
                group["lr"] = rate

    state_dict.set_optimizer_state_dict = wrong
