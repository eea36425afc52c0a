"""DDP reduces its first bucket, and leaves the others as each rank has them."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def apply() -> None:
    init = DistributedDataParallel.__init__

    def wrong(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.register_comm_hook(self.process_group, reduce_first)

    def reduce_first(group, bucket):
        if bucket.index() > 0:
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future
        future = dist.all_reduce(
            bucket.buffer().div_(group.size()), group=group, async_op=True
        ).get_future()
        return future.then(lambda f: f.value()[0])

    DistributedDataParallel.__init__ = wrong
