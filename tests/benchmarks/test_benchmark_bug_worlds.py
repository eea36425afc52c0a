"""A planted bug is found by what goes away without it, and by nothing that torch shows itself.

Torch "as it is" has a fault of its own here, so that nothing depends on the findings of one
release.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bug_worlds import SHOWS_WITHOUT, STOCK_RUNS, BugWorld, StockWorld
from cases import make_case
from hunt import goes_away, reduced
from planting import fault_file

from fuzzshard.campaign.known import Found
from fuzzshard.case.case import Freeze
from fuzzshard.shrink import Budget
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig

pytestmark = pytest.mark.slow

BUG, OF_STOCK = fault_file("ddp_raises_otherwise"), fault_file("ddp_raises")
NOW_AND_THEN = fault_file("ddp_raises_in_its_third_life")
CASE = make_case(engines=("ddp",))
ALL_FROZEN = make_case(freezes=(Freeze(target=""),))


def with_faults(stack: ExitStack, *faults: Path) -> World:
    return stack.enter_context(World(WorldConfig(size=2, preload=tuple(map(str, faults)))))


@pytest.fixture(scope="module")
def bug() -> Iterator[World]:
    with ExitStack() as stack:
        yield with_faults(stack, OF_STOCK, BUG)


def test_a_finding_that_goes_away_without_the_bug_stands(bug: World, two_ranks: World) -> None:
    stock = StockWorld(two_ranks)
    verdict = BugWorld(bug, stock).run(CASE)
    assert verdict.signature == "crash/ddp/ValueError in ddp_raises_otherwise"
    found = Found(0, CASE, verdict)
    reduction = reduced(BugWorld(bug, stock), found, Budget(max_evaluations=5, max_seconds=20))
    assert reduction.always
    assert goes_away(CASE, reduction.judged.case, stock)


def test_a_finding_of_a_case_that_fails_otherwise_without_the_bug_is_none(bug: World) -> None:
    with ExitStack() as stack:
        stock = StockWorld(with_faults(stack, OF_STOCK))
        verdict = BugWorld(bug, stock).run(CASE)
    assert (verdict.status, verdict.message) == (Status.REJECTED, SHOWS_WITHOUT)


def test_a_case_that_fails_without_the_bug_in_one_run_of_three_does_not_pass_there() -> None:
    with ExitStack() as stack:
        stock = StockWorld(with_faults(stack, NOW_AND_THEN))
        assert stock.passes(CASE)
        assert not stock.passes(CASE, runs=STOCK_RUNS)


def test_a_case_that_is_refused_as_announced_passes_without_the_bug(two_ranks: World) -> None:
    assert two_ranks.run(ALL_FROZEN).status is Status.REJECTED
    assert StockWorld(two_ranks).passes(ALL_FROZEN, runs=STOCK_RUNS)
