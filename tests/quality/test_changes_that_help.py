"""Changes that make a case right, with a judge that needs no ranks."""

from __future__ import annotations

from cases import BACKWARD, FORWARD, chain, make_case
from msgspec.structs import replace

from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.describe import describe
from fuzzshard.corpus.entry import CorpusEntry, Culprit
from fuzzshard.drafts.evidence import changes_that_help
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.shrink.culprits import MOST_CHANGES, changes
from fuzzshard.verdict import Status

MODEL = chain(a=Linear(out=4), b=Linear(out=4))
LIST = WrapGroup(modules=("a", "b"), reshard_after_forward=2)
CASE = make_case(MODEL, wrap=(LIST,), schedule=(FORWARD, BACKWARD))


ENTRY = CorpusEntry(case=CASE)


def test_an_option_is_named_once_and_before_what_changes_more() -> None:
    def judge(case: Case) -> Status:
        fails = any(type(group.reshard_after_forward) is int for group in case.wrap)
        return Status.DIVERGENCE if fails else Status.PASS

    first, *others = changes_that_help(ENTRY, judge, 2)
    assert first.change == "with reshard_after_forward=True in place of 2"
    assert not any("reshard_after_forward=" in culprit.change for culprit in others)


def test_a_list_group_may_be_the_cause() -> None:
    def judge(case: Case) -> Status:
        return Status.CRASH if any(len(group.modules) > 1 for group in case.wrap) else Status.PASS

    found = [culprit.change for culprit in changes_that_help(ENTRY, judge, 2)]
    assert "with fully_shard(a) and fully_shard(b) in place of fully_shard([a, b])" in found


def test_what_shrinking_has_seen_is_not_run_again_and_stays_in_the_table() -> None:
    changed = dict(changes(CASE))
    (dropped,) = (phrase for phrase in changed if phrase == "without backward")
    seen = (
        Culprit(change=dropped, outcome="PASS"),
        Culprit(change="without b", outcome="REJECTED"),
    )
    ran: list[Case] = []

    def judge(case: Case) -> Status:
        ran.append(case)
        return Status.CRASH

    assert changes_that_help(replace(ENTRY, culprits=seen), judge, 2) == seen
    assert changed[dropped] not in ran


def test_every_change_is_said_in_its_own_words_and_those_of_one_phrase_come_first() -> None:
    case = replace(CASE, dtype="float64")
    offered = list(changes(case))
    assert len(offered) > 20
    phrases = [phrase for phrase, _ in offered]
    assert len(set(phrases)) == len(phrases)
    assert all("; ".join(describe(case, changed)) == phrase for phrase, changed in offered)
    lengths = [len(describe(case, changed)) for _, changed in offered if changed.mesh.size > 1]
    assert lengths[0] == 1
    assert max(lengths) <= MOST_CHANGES
    assert all(length > 1 for length in lengths[lengths.count(1) :])


def test_no_change_needs_more_ranks_than_there_are() -> None:
    asked: list[int] = []

    def judge(case: Case) -> Status:
        asked.append(case.mesh.size)
        return Status.CRASH

    assert changes_that_help(ENTRY, judge, 2, max_runs=60) == ()
    assert 0 < max(asked) <= 2
