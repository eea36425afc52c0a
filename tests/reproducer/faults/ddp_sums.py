"""DDP adds gradients up where it should average them."""

from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel


def sum_bucket(state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])


def apply():
    construct = DistributedDataParallel.__init__

    def init(self, *args, **kwargs):
        construct(self, *args, **kwargs)
        self.register_comm_hook(None, sum_bucket)

    DistributedDataParallel.__init__ = init
