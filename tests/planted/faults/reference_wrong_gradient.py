"""Not a fault of torch but of the reference: it does not divide by the number of ranks."""

import torch.distributed as dist

from fuzzshard.engines.sync import ExplicitSync


def apply() -> None:
    averages = ExplicitSync.averages

    def wrong(self, local):
        return {fqn: a * dist.get_world_size() for fqn, a in averages(self, local).items()}

    ExplicitSync.averages = wrong
