"""The gradient of a redistributed DTensor is the sum of what was to be averaged."""

from torch.distributed.tensor import Partial


def apply() -> None:
    right = Partial._reduce_shard_value

    def wrong(self, *args):
        return right(Partial() if self.reduce_op == "avg" else self, *args)

    Partial._reduce_shard_value = wrong
