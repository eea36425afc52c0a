"""Not a fault of torch but of the reference: it does not divide by the number of ranks."""

import torch.distributed as dist

from fuzzshard.engines.sync import ExplicitSync


def apply() -> None:
    average = ExplicitSync.average

    def wrong(self, local, accumulated):
        return average(self, local, accumulated) * dist.get_world_size()

    ExplicitSync.average = wrong
