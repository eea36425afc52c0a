"""Not a fault of torch but of the reference: it does not divide by the number of ranks."""

import torch.distributed as dist

from fuzzshard.engines.sync import ExplicitSync


def apply() -> None:
    average = ExplicitSync.average

    def wrong(self, fqn, local, accumulated, divisor):
        return average(self, fqn, local, accumulated, divisor) * dist.get_world_size()

    ExplicitSync.average = wrong
