"""A fault that batches of one size hide is found among drawn cases, and shrunk to one rank's
batch.
"""

from __future__ import annotations

import itertools

import pytest
from cases import FORWARD
from planting import fault_file

from fuzzshard.analysis.batches import rows_of_batch
from fuzzshard.case.case import Case, RankBatch
from fuzzshard.parts.ops import Backward
from fuzzshard.shrink import Budget, shrink
from fuzzshard.strategies import case_stream
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig

pytestmark = pytest.mark.slow

FAULT = fault_file("weights_by_rows")
SIGNATURE = "divergence/fully_shard/gradient"
SEED, ENOUGH = 2, 150


def test_a_reduction_that_weights_by_rows_is_found_and_shrunk_to_one_batch_of_another_size(
    two_ranks: World,
) -> None:
    stream = case_stream(SEED, world_size=2, engines=("fully_shard",))
    drawn = [case for case in itertools.islice(stream, ENOUGH) if case.inputs.rank_batches]
    with World(WorldConfig(size=2, preload=(str(FAULT),))) as world:

        def shows_it(case: Case) -> bool:
            return world.run(case).signature == SIGNATURE

        found = next(
            (c for c in drawn if shows_it(c) and two_ranks.run(c).status is Status.PASS), None
        )
        assert found is not None, f"seed {SEED}: none of {ENOUGH} cases shows it"
        smallest = shrink(found, shows_it, budget=Budget(max_evaluations=400)).case
    assert smallest.inputs.rank_batches == (RankBatch(rank=0, rows=1),)
    assert rows_of_batch(smallest, 0) == (1, 2)
    assert smallest.schedule == (FORWARD, Backward())
    assert two_ranks.run(smallest).status is Status.PASS
