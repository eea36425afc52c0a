"""Differences of cases in words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cases import AGAIN, BACKWARD, FORWARD, STEP, ZERO, chain, make_case
from msgspec.structs import replace

from fuzzshard.case.case import Case, Freeze, Mesh, RankBatch, Tie, WrapGroup
from fuzzshard.case.describe import describe
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Forward, SetFlag

LIST = WrapGroup(modules=("a", "b"), reshard_after_forward=2)
CASE = make_case(
    chain(a=Linear(out=4), b=Linear(out=4, bias=False)), wrap=(LIST, WrapGroup(modules=("",)))
)
FLAG = SetFlag(flag="requires_gradient_sync", value=False)
ALONE = tuple(replace(LIST, modules=(name,)) for name in "ab")


def with_rank_batches(case: Case, *items: RankBatch) -> Case:
    return replace(case, inputs=replace(case.inputs, rank_batches=items))


CHANGES: dict[str, Callable[[Case], Case]] = {
    "with reshard_after_forward=True on a, b in place of 2": lambda c: replace(
        c, wrap=(replace(LIST, reshard_after_forward=True), c.wrap[1])
    ),
    "with fully_shard(a) and fully_shard(b) in place of fully_shard([a, b])": lambda c: replace(
        c, wrap=(*ALONE, c.wrap[1])
    ),
    "without fully_shard(model)": lambda c: replace(c, wrap=c.wrap[:1]),
    "with 4 ranks in place of 2": lambda c: replace(c, mesh=Mesh(shard=4)),
    "on the mesh replicate 2 x shard 1 in place of shard 2": lambda c: replace(
        c, mesh=Mesh(shard=1, replicate=2)
    ),
    "with 1 step in place of 2": lambda c: replace(c, schedule=c.schedule[:-1]),
    "without zero grad": lambda c: replace(
        c, schedule=tuple(op for op in c.schedule if op != ZERO)
    ),
    "with set_requires_gradient_sync(False) of the root": lambda c: replace(
        c, schedule=(FLAG, *c.schedule)
    ),
    "with batch=0 in forward in place of 1": lambda c: replace(
        c,
        schedule=tuple(
            replace(op, batch=0) if isinstance(op, Forward) else op for op in c.schedule
        ),
    ),
    "with 1 row on rank 1 in batch 0": lambda c: with_rank_batches(
        c, RankBatch(rank=1, rows=1, batch=0)
    ),
    "with no rows on rank 0": lambda c: with_rank_batches(c, RankBatch(rank=0, rows=0)),
    "with a.weight frozen": lambda c: replace(c, freezes=(Freeze(target="a.weight"),)),
    "with b.weight tied to a.weight": lambda c: replace(
        c, ties=(Tie(parameter="b.weight", source="a.weight"),)
    ),
    "with momentum=0.5 in place of 0.0": lambda c: replace(
        c, optimizer=replace(c.optimizer, momentum=0.5)
    ),
    "with dtype=float64 in place of float32": lambda c: replace(c, dtype="float64"),
    "with bias=True of b in place of False": lambda c: replace(
        c, model=chain(a=Linear(out=4), b=Linear(out=4))
    ),
    "with b an activation in place of a Linear": lambda c: replace(
        c, model=chain(a=Linear(out=4), b=Activation())
    ),
}


@pytest.mark.parametrize("phrase", CHANGES)
def test_a_change_is_one_phrase(phrase: str) -> None:
    assert describe(CASE, CHANGES[phrase](CASE)) == [phrase]


def test_equal_cases_differ_in_nothing() -> None:
    assert describe(CASE, CASE) == []


def test_ranks_whose_batches_are_as_the_others_are_one_phrase() -> None:
    items = RankBatch(rank=0, rows=3), RankBatch(rank=1, rows=1)
    assert describe(with_rank_batches(CASE, *items), CASE) == ["with batches of one size"]
    assert describe(with_rank_batches(CASE, *items), with_rank_batches(CASE, items[0])) == [
        "with the usual number of rows on rank 1"
    ]
    assert describe(
        with_rank_batches(CASE, items[1]), with_rank_batches(CASE, replace(items[1], rows=0))
    ) == ["with no rows on rank 1 in place of 1"]


def test_two_changes_are_two_phrases() -> None:
    changed = replace(CASE, dtype="float64", schedule=(FORWARD, BACKWARD, STEP, AGAIN))
    assert len(describe(CASE, changed)) > 1


def test_flags_of_engines_without_flags_are_no_sync() -> None:
    flags = (FLAG, FORWARD, BACKWARD, replace(FLAG, value=True), AGAIN, BACKWARD)
    with_flags = replace(CASE, engines=("ddp",), schedule=flags)
    plain = replace(with_flags, schedule=(FORWARD, BACKWARD, AGAIN, BACKWARD))
    assert describe(with_flags, plain) == ["without no_sync()"]
