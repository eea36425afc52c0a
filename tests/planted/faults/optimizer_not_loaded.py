"""A checkpoint of DTensors is loaded without the state of the optimizer."""

from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.tensor import DTensor


def apply() -> None:
    load = state_dict_loader.load

    def wrong(state_dict, **options):
        if any(isinstance(value, DTensor) for value in state_dict["model"].values()):
            state_dict = {"model": state_dict["model"]}
        load(state_dict, **options)

    state_dict_loader.load = wrong
