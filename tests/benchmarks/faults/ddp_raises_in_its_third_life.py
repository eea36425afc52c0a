"""The forward of the third DDP in a process raises: a fault that one run may miss."""

from torch.nn.parallel import DistributedDataParallel

made = []


def apply() -> None:
    init, forward = DistributedDataParallel.__init__, DistributedDataParallel.forward

    def counted(self, *args, **kwargs):
        init(self, *args, **kwargs)
        made.append(self.__class__)

    def wrong(self, *inputs, **kwargs):
        if len(made) == 3:
            raise KeyError("bucket 7")
        return forward(self, *inputs, **kwargs)

    DistributedDataParallel.__init__, DistributedDataParallel.forward = counted, wrong
