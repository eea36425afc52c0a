"""``ZeroRedundancyOptimizer`` runs no hooks of users after its steps."""

from torch.distributed.optim import ZeroRedundancyOptimizer


def apply() -> None:
    ZeroRedundancyOptimizer.register_step_post_hook = lambda self, hook: None
