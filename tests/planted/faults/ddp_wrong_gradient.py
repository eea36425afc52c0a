"""DDP sums gradients and forgets to divide by the number of ranks."""

from torch.nn.parallel import DistributedDataParallel


def apply() -> None:
    init = DistributedDataParallel.__init__

    def wrong(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.register_comm_hook(self.process_group, summed)

    def summed(group, bucket):
        import torch.distributed as dist

        future = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
        return future.then(lambda f: f.value()[0])

    DistributedDataParallel.__init__ = wrong
