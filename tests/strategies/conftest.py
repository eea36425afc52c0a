import dataclasses

import pytest
from streams import Streams

from fuzzshard.case.case import Case


@dataclasses.dataclass(frozen=True)
class Sample:
    """Cases of streams that begin with ``seed``, with the features of each."""

    seed: int
    world_size: int
    cases: list[Case]
    features: list[frozenset[str]]

    def share(self, *wanted: str) -> float:
        """The share of cases that have all these features."""
        return sum(present.issuperset(wanted) for present in self.features) / len(self.cases)


@pytest.fixture(scope="session")
def sample(streams: Streams) -> Sample:
    """About 2,000 distinct cases without CUDA: every stream begins with the minimal one."""
    drawn = streams.whole(cuda=False)
    return Sample(streams.SEED, streams.WORLD_SIZE, [*drawn], [*drawn.values()])
