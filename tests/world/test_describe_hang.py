"""Hangs in words, from what each rank says of the collectives that it has joined."""

from __future__ import annotations

import pytest
from cases import make_case

from fuzzshard.case.case import Mesh
from fuzzshard.world.desync import describe_hang
from fuzzshard.world.messages import Joined, Position

CASE = make_case()
EVERYONE = (0, 1)


def joined(
    number: int, kind: str = "all_gather", *, ranks: tuple[int, ...] = EVERYONE, done: bool = False
) -> Joined:
    return Joined(ranks=ranks, number=number, kind=kind, sizes="[[2]] -> [[4]]", done=done)


def at(*collectives: Joined, op: int = 0) -> Position:
    return Position(op=op, joined=collectives)


WAITS = "waits in all_gather 7 of ranks 0-1 (shard) in op 0 (forward)"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            at(joined(6, done=True), op=1),
            "has not joined it and is in no collective in op 1 (backward)",
        ),
        (
            at(joined(7, done=True), joined(8, "reduce_scatter"), op=1),
            "has left it and waits in reduce_scatter 8 of ranks 0-1 (shard) in op 1 (backward)",
        ),
        (at(joined(7, done=True)), "has left it and is in no collective in op 0 (forward)"),
        (at(joined(300), op=-1), "has left it and waits in all_gather 300 of ranks 0-1 (shard)"),
        (at(joined(7)), "waits in it too in op 0 (forward)"),
        (
            at(joined(7, "all_reduce")),
            "has joined all_reduce in its place and waits in all_reduce 7 of ranks 0-1 (shard) "
            "in op 0 (forward)",
        ),
        (at(), "has not joined it and is in no collective in op 0 (forward)"),
    ],
    ids=["behind", "ahead", "outside", "long ago", "too", "another", "nothing yet"],
)
def test_a_rank_is_where_its_peer_waits_or_where_else(other: Position, words: str) -> None:
    waiting = at(joined(6, done=True), joined(7), joined(8))
    assert describe_hang(CASE, {0: waiting, 1: other}) == f"rank 0 {WAITS}; rank 1 {words}"


def test_the_rank_that_waits_comes_first() -> None:
    words = describe_hang(CASE, {0: at(), 1: at(joined(7))})
    assert words.startswith(f"rank 1 {WAITS}; rank 0 has not joined it")


def test_the_axis_of_a_group_is_named() -> None:
    case = make_case(mesh=Mesh(replicate=2, shard=2))
    replicas, shards = joined(3, "all_reduce", ranks=(1, 3)), joined(4, ranks=(0, 1))
    assert describe_hang(case, {1: at(replicas)}) == (
        "rank 1 waits in all_reduce 3 of ranks 1, 3 (replicate) in op 0 (forward)"
    )
    assert describe_hang(case, {0: at(shards), 2: at()}) == (
        "rank 0 waits in all_gather 4 of ranks 0-1 (shard) in op 0 (forward); "
        "rank 2 is in no collective in op 0 (forward)"
    )


def test_the_axis_of_ranks_in_another_order_is_named() -> None:
    case = make_case(mesh=Mesh(replicate=2, shard=2, made="transposed"))
    assert describe_hang(case, {0: at(joined(3, ranks=(0, 1)))}) == (
        "rank 0 waits in all_gather 3 of ranks 0-1 (replicate) in op 0 (forward)"
    )


def test_where_no_rank_answers_there_is_nothing_to_say() -> None:
    assert describe_hang(CASE, {}) == ""
