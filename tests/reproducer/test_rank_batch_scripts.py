"""Scripts of cases in which ranks have batches of different sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from small_cases import SMALL

from fuzzshard.case.case import RankBatch
from fuzzshard.parts.ops import Backward, Forward
from fuzzshard.reproducer import script
from fuzzshard.reproducer.aim import Values
from fuzzshard.verdict import Finding

pytestmark = pytest.mark.slow

FAULT = Path(__file__).parents[1] / "planted" / "faults" / "weights_by_rows.py"
CASE = replace(SMALL, inputs=replace(SMALL.inputs, rank_batches=(RankBatch(rank=1, rows=1),)))
FOUND = Finding(
    oracle="gradient",
    engine="fully_shard",
    observed="1.5 at [0, 2] of [4, 4]",
    expected="0.75 at [0, 2] of [4, 4]",
    op=1,
    name="linear0.weight",
    rung="bitwise",
    error=0.75,
    bound=0.0,
)


@pytest.mark.parametrize(
    ("values", "made"),
    [("seeded", "randn([2, 1][rank], 4"), ("named", "values(([2, 1][rank], 4)")],
)
def test_a_script_gives_each_rank_its_rows_and_shows_a_fault_that_weights_by_them(
    run_script, values: Values, made: str
) -> None:
    text = script(CASE, finding=FOUND, values=values)
    assert made in text
    stock = run_script(text, 2)
    assert not stock.fails, f"{text}\n{stock.output}"
    broken = run_script(text, 2, preload=[FAULT])
    assert broken.fails, text
    assert "AssertionError" in broken.output, broken.output


def test_only_the_batch_of_another_size_depends_on_the_rank() -> None:
    inputs = replace(CASE.inputs, rank_batches=(RankBatch(rank=0, rows=0, batch=1),))
    schedule = (*CASE.schedule, Forward(batch=1), Backward())
    case = replace(CASE, inputs=inputs, schedule=schedule, loss="dot")
    text = script(case, finding=replace(FOUND, op=3), values="named")
    assert "x0 = values((2, 4)" in text
    assert "x1 = values(([0, 2][rank], 4)" in text
    assert "* values(([0, 2][rank], 4)" in text
