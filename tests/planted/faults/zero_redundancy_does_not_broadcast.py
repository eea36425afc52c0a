"""``ZeroRedundancyOptimizer`` keeps what a rank has stepped to itself."""

from torch.distributed.optim import ZeroRedundancyOptimizer


def apply() -> None:
    ZeroRedundancyOptimizer._sync_params = lambda self: None
