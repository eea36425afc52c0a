"""DDP adds gradients up where it should average them."""

from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel


def sum_bucket(group, bucket):
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def apply():
    construct = DistributedDataParallel.__init__

    def init(self, *args, **kwargs):
        construct(self, *args, **kwargs)
        self.register_comm_hook(self.process_group, sum_bucket)

    DistributedDataParallel.__init__ = init
