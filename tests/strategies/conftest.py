import dataclasses

import pytest

from fuzzshard.case.case import Case
from fuzzshard.case.features import features
from fuzzshard.strategies import draw_cases


@dataclasses.dataclass(frozen=True)
class Sample:
    """Cases of one stream with the features of each."""

    seed: int
    world_size: int
    cases: list[Case]
    features: list[frozenset[str]]

    def share(self, *wanted: str) -> float:
        """The share of cases that have all these features."""
        return sum(present.issuperset(wanted) for present in self.features) / len(self.cases)


@pytest.fixture(scope="session")
def sample() -> Sample:
    """5,000 cases for a world of eight ranks, which every combination of mesh axes fits."""
    seed, world_size = 20261, 8
    cases = draw_cases(seed, 5000, world_size=world_size)
    return Sample(seed, world_size, cases, [features(case) for case in cases])
