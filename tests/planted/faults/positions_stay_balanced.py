"""What puts positions back in order balances them a second time."""

from torch.distributed.tensor.experimental._context_parallel._load_balancer import (
    _HeadTailLoadBalancer,
)


def apply() -> None:
    right = _HeadTailLoadBalancer._generate_indices
    _HeadTailLoadBalancer._generate_indices = lambda self, restore=False: right(self)
