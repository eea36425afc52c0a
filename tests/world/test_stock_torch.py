"""Stock torch passes: no rule of ours accuses it, whatever the case has."""

from __future__ import annotations

import pytest
from stock_cases import STOCK, Stock

from fuzzshard.case.features import ALL_FEATURES, features
from fuzzshard.verdict import Status
from fuzzshard.world import World

NOT_HERE = {"mesh:larger", "reuse:tied_across_groups"}
"""More ranks than a test machine has cores for; what torch refuses (test_refusals.py)."""


@pytest.mark.parametrize("stock", STOCK.values(), ids=STOCK.keys())
def test_stock_torch_passes(four_ranks: World, stock: Stock) -> None:
    verdict = four_ranks.run(stock.case)
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
    assert verdict.notes == ({"ddp": stock.ddp} if stock.ddp else {})
    assert verdict.rung in ({"bitwise"} if stock.bitwise else {"bitwise", "bounded"})


def test_the_hand_written_cases_have_every_feature() -> None:
    seen = {feature for stock in STOCK.values() for feature in features(stock.case)}
    assert set(ALL_FEATURES) - seen == NOT_HERE
