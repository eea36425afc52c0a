"""Batches of other sizes on some ranks: what they are, what refuses them, and what becomes of
them.
"""

from __future__ import annotations

import pytest
from cases import AGAIN, BACKWARD, FORWARD, chain, float_inputs, make_case
from msgspec.structs import replace

from fuzzshard.analysis.batches import all_rows, rows_of_batch
from fuzzshard.analysis.features import features
from fuzzshard.analysis.order import size_order
from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case, Mesh, RankBatch
from fuzzshard.case.codec import decode, encode
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.engines import REFERENCE
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import BatchNorm
from fuzzshard.parts.op import Call
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.scope import Scope
from fuzzshard.shrink import shrink
from fuzzshard.shrink.repair import repaired

CASE = make_case()
TOKENS = replace(CASE, loss="token_mean")


def sized(*items: RankBatch, case: Case = CASE, **inputs: object) -> Case:
    return replace(case, inputs=replace(case.inputs, rank_batches=items, **inputs))


def divided(case: Case) -> float:
    """What the loss of the first forward is divided by."""
    scope = Scope(case, REFERENCE, "model", "model", MeshNames(case))
    (text,) = scope.terms(Call(), ["out"])
    return float(text.rpartition(" ")[2].rstrip(")"))


def test_the_mean_number_of_tokens_counts_those_of_all_ranks_that_are_not_ignored() -> None:
    case = sized(RankBatch(rank=0, rows=3), batch=2, seq=4, case=TOKENS)
    assert divided(case) == (3 * 4 + 2 * 4 - 1) / 2
    assert divided(sized(batch=2, same_on_ranks=True, case=TOKENS)) == 2
    assert divided(sized(RankBatch(rank=0, rows=0), batch=1, case=TOKENS)) == 1, "never by zero"


def test_what_is_said_of_one_batch_comes_before_what_is_said_of_all() -> None:
    case = sized(RankBatch(rank=1, rows=3), RankBatch(rank=1, rows=0, batch=1))
    assert [rows_of_batch(case, batch) for batch in (0, 1)] == [(2, 3), (2, 0)]
    assert all_rows(case) == {0, 2, 3}


def test_a_case_keeps_its_batches_in_json_and_an_older_one_has_none() -> None:
    case = sized(RankBatch(rank=1, rows=0, batch=1))
    assert decode(encode(case)) == case
    assert b"rank_batches" not in encode(CASE)
    assert decode(encode(CASE)).inputs.rank_batches == ()


NORM = make_case(chain(a=Linear(out=4), n=BatchNorm()))
ONE = RankBatch(rank=1, rows=1)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (sized(RankBatch(rank=2, rows=1)), "rank_batches names rank 2 of 2 data-parallel ranks"),
        (
            sized(RankBatch(rank=2, rows=1), case=replace(CASE, mesh=Mesh(shard=2, pipeline=2))),
            "names rank 2 of 2",
        ),
        (
            sized(RankBatch(rank=0, rows=1, batch=7)),
            "rank_batches names batch 7, which no forward uses",
        ),
        (sized(ONE, replace(ONE, rows=2)), "rank_batches names a batch of a rank twice"),
        (
            sized(ONE, same_on_ranks=True),
            "ranks have batches of their own size and the same inputs",
        ),
        (sized(RankBatch(rank=0, rows=-1)), "rank_batches has fewer than 0 rows"),
        (sized(RankBatch(rank=0, rows=5000)), "a tensor dimension is 5000"),
        (sized(ONE, case=NORM), "fewer than 2 rows, and a norm needs two values"),
        (
            sized(RankBatch(rank=0, rows=0), case=replace(CASE, loss="mean_square")),
            "fewer than 1 rows, and the mean of nothing is NaN",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(case: Case, message: str) -> None:
    with pytest.raises(InvalidCase, match=message):
        validate(case)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ((RankBatch(rank=1, rows=0),), {"input:rows_differ", "input:no_rows"}),
        (
            (RankBatch(rank=1, rows=1, batch=1),),
            {"input:rows_differ", "input:rows_vary", "input:one_row"},
        ),
        (tuple(RankBatch(rank=r, rows=3, batch=1) for r in (0, 1)), {"input:rows_vary"}),
        ((RankBatch(rank=1, rows=2),), set()),
    ],
)
def test_features_say_what_ranks_really_have(
    items: tuple[RankBatch, ...], expected: set[str]
) -> None:
    names = {"input:rows_differ", "input:rows_vary", "input:one_row", "input:no_rows"}
    assert names & features(sized(*items)) == expected


def test_a_batch_of_another_size_is_larger_than_none_and_an_empty_one_than_a_short_one() -> None:
    one, none, late = ONE, replace(ONE, rows=0), replace(ONE, batch=1)
    cases = [CASE, *(sized(item) for item in (one, none, late))]
    assert sorted(cases, key=size_order) == cases


def test_a_rank_beyond_a_smaller_mesh_becomes_its_last_one_and_an_unused_batch_goes() -> None:
    items = RankBatch(rank=3, rows=1), RankBatch(rank=2, rows=0, batch=1)
    case = replace(sized(*items), mesh=Mesh(shard=2), schedule=(FORWARD, BACKWARD))
    mended = repaired(case)
    assert mended is not None
    assert mended.inputs.rank_batches == (RankBatch(rank=1, rows=1),)


def test_ranks_of_different_sizes_shrink_to_one_row_on_the_first() -> None:
    items = tuple(RankBatch(rank=rank, rows=4 - rank, batch=1) for rank in range(4))
    case = sized(
        *items, case=make_case(inputs=float_inputs(), mesh=4, schedule=(FORWARD, AGAIN, BACKWARD))
    )
    smallest = shrink(case, lambda c: "input:rows_differ" in features(c)).case
    assert smallest.inputs.rank_batches == (RankBatch(rank=0, rows=1),)
    assert smallest.mesh == Mesh(shard=2)
