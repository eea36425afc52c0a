"""The average of sharded parameters stays what it was at first."""

from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel


def apply() -> None:
    update_parameters = AveragedModel.update_parameters

    def wrong(self, model):
        if not (self.n_averaged and isinstance(next(model.parameters()), DTensor)):
            update_parameters(self, model)

    AveragedModel.update_parameters = wrong
