"""Where a dropout gives a rank without rows another graph."""

from __future__ import annotations

import pytest
from cases import chain, float_inputs, graph, groups, make_case
from msgspec.structs import replace

from fuzzshard.case.case import Case, RankBatch
from fuzzshard.case.graph import Block
from fuzzshard.case.no_rows import has_other_graph_without_rows
from fuzzshard.parts.leaves.dropout import Dropout
from fuzzshard.parts.leaves.linear import Linear

LINEAR, DROPOUT = Linear(out=5), Dropout(p=0.5)
ENDS_WITH_DROPOUT = chain(a=LINEAR, b=LINEAR, d=DROPOUT)
HANDS_DROPOUT_ON = chain(a=LINEAR, inner=chain(b=LINEAR, d=DROPOUT))
ADDS_TO_DROPOUT = graph("h0 = a(x)", "h1 = d(h0)", "h2 = add(h1, x)", a=LINEAR, d=DROPOUT)
DROPS_WITHOUT_GRAD = graph(
    "h0 = a(x)", "h1 = d(h0) without grad", "h2 = add(h0, h1)", a=LINEAR, d=DROPOUT
)


def differs(model: Block, *wrapped: str, rows: int = 0) -> bool:
    inputs = replace(float_inputs(), rank_batches=(RankBatch(rank=1, rows=rows),))
    case: Case = make_case(model, wrap=groups(*wrapped), inputs=inputs)
    return has_other_graph_without_rows(case, wrapped)


@pytest.mark.parametrize(
    ("model", "wrapped"),
    [
        (ENDS_WITH_DROPOUT, ("b", "")),
        (ENDS_WITH_DROPOUT, ("d", "")),
        (HANDS_DROPOUT_ON, ("a", "")),
        (HANDS_DROPOUT_ON, ("a", "inner")),
        (DROPS_WITHOUT_GRAD, ("",)),
    ],
)
def test_a_group_may_return_what_is_a_dropout_on_other_ranks(
    model: Block, wrapped: tuple[str, ...]
) -> None:
    assert differs(model, *wrapped)
    assert not differs(model, *wrapped, rows=1)


@pytest.mark.parametrize(
    ("model", "wrapped"),
    [
        (ADDS_TO_DROPOUT, ("a", "")),
        (HANDS_DROPOUT_ON, ("a", "inner.b")),
        (ENDS_WITH_DROPOUT, ("",)),
        (chain(a=LINEAR, b=LINEAR, d=Dropout(p=0.0)), ("b", "")),
    ],
    ids=["no group", "no group within", "one group alone", "nothing dropped"],
)
def test_hooks_stay_in_order_where_no_group_returns_a_dropout(
    model: Block, wrapped: tuple[str, ...]
) -> None:
    assert not differs(model, *wrapped)
