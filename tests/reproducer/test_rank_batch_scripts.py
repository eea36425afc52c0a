"""Scripts of cases in which ranks have batches of different sizes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from planting import fault_file
from small_cases import SMALL

from fuzzshard.case.case import RankBatch
from fuzzshard.parts.ops import Backward, Forward
from fuzzshard.reproducer import script
from fuzzshard.verdict import Finding

pytestmark = pytest.mark.slow

CASE = replace(SMALL, inputs=replace(SMALL.inputs, rank_batches=(RankBatch(rank=1, rows=1),)))
FOUND = Finding(
    oracle="gradient",
    engine="fully_shard",
    observed="1.5 at [0, 2] of [4, 4]",
    expected="0.75 at [0, 2] of [4, 4]",
    op=1,
    name="linear0.weight",
    comparison="bitwise",
    error=0.75,
    bound=0.0,
)


def test_a_script_gives_each_rank_its_rows_and_shows_a_fault_that_weights_by_them(
    run_script,
) -> None:
    text = script(CASE, finding=FOUND)
    assert "randn([2, 1][rank], 4" in text
    stock = run_script(text, 2)
    assert not stock.fails, f"{text}\n{stock.output}"
    broken = run_script(text, 2, preload=[fault_file("weights_by_rows")])
    assert broken.fails, text
    assert "AssertionError" in broken.output, broken.output


def test_only_the_batch_of_another_size_depends_on_the_rank() -> None:
    inputs = replace(CASE.inputs, rank_batches=(RankBatch(rank=0, rows=0, batch=1),))
    schedule = (*CASE.schedule, Forward(batch=1), Backward())
    case = replace(CASE, inputs=inputs, schedule=schedule, loss="dot")
    text = script(case, finding=replace(FOUND, op=3))
    assert "x0 = torch.randn(2, 4" in text
    assert "x1 = torch.randn([0, 2][rank], 4" in text
