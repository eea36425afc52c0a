"""Changes that make a case right, with a judge that needs no ranks."""

from __future__ import annotations

from cases import BACKWARD, FORWARD, chain, make_case
from msgspec.structs import replace

from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.describe import describe
from fuzzshard.case.graph import Linear
from fuzzshard.shrink.culprits import culprits, single_changes
from fuzzshard.verdict import Status

MODEL = chain(a=Linear(out=4), b=Linear(out=4))
LIST = WrapGroup(modules=("a", "b"), reshard_after_forward=2)
CASE = make_case(MODEL, wrap=(LIST,), schedule=(FORWARD, BACKWARD))


def test_an_option_is_named_once_and_before_what_changes_more() -> None:
    def judge(case: Case) -> Status:
        fails = any(type(group.reshard_after_forward) is int for group in case.wrap)
        return Status.DIVERGENCE if fails else Status.PASS

    first, *others = culprits(CASE, judge, 2)
    assert first.change == "with reshard_after_forward=True in place of 2"
    assert not any("reshard_after_forward=" in culprit.change for culprit in others)


def test_a_list_group_may_be_the_cause() -> None:
    def judge(case: Case) -> Status:
        return Status.CRASH if any(len(group.modules) > 1 for group in case.wrap) else Status.PASS

    found = [culprit.change for culprit in culprits(CASE, judge, 2)]
    assert "with fully_shard(a) and fully_shard(b) in place of fully_shard([a, b])" in found


def test_every_single_change_is_one_phrase_and_no_two_are_the_same() -> None:
    changes = list(single_changes(replace(CASE, dtype="float64")))
    assert len(changes) > 20
    phrases = [phrase for phrase, _ in changes]
    assert len(set(phrases)) == len(phrases)
    assert all(describe(replace(CASE, dtype="float64"), changed) == [phrase] for phrase, changed in changes)


def test_no_change_needs_more_ranks_than_there_are() -> None:
    asked: list[int] = []

    def judge(case: Case) -> Status:
        asked.append(case.mesh.size)
        return Status.CRASH

    assert culprits(CASE, judge, 2, max_runs=60) == ()
    assert 0 < max(asked) <= 2
