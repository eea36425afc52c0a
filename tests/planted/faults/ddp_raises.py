"""The forward of DDP raises an error that no documentation mentions."""

from torch.nn.parallel import DistributedDataParallel


def apply() -> None:
    def wrong(self, *inputs, **kwargs):
        raise KeyError("bucket 7")

    DistributedDataParallel.forward = wrong
