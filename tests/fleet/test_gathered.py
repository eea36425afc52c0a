"""What nodes tell the head, on its disk and in its corpus."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import verdicts
from cases import make_case

from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.store import CASE_FILE, save_unshrunk
from fuzzshard.errors import InfraError, InvalidMessage
from fuzzshard.fleet.gathered import CORPUS_NAME, Gathered, campaign_of
from fuzzshard.fleet.mirror import Changes

NAME = "divergence-fully_shard-gradient-12345678"
PATH = f"findings/{NAME}/{CASE_FILE}"


def entry(case: Case | None = None, **changes: object) -> CorpusEntry:
    values = {"confirmed": verdicts.ALWAYS, "unshrunk": False, **changes}
    return verdicts.entry(case or make_case(), **values)


def told(entry: CorpusEntry) -> Changes:
    path = PATH.replace(CASE_FILE, "repro.py")
    return {path: (0.0, b"print(1)\n"), PATH: (0.0, encode_entry(entry))}


class Head:
    """What is gathered in a corpus, and what was said of it."""

    def __init__(self, corpus: Path) -> None:
        self.corpus = corpus
        (corpus / "fleet").mkdir(parents=True, exist_ok=True)
        self.said: list[str] = []
        self.gathered = Gathered(corpus, lambda case, **_: iter(()), self.said.append)

    def take(self, name: str, changes: Changes, *, is_all: bool = False) -> None:
        self.gathered.take(name, changes, is_all=is_all)
        self.gathered.save()

    def entries(self) -> list[CorpusEntry]:
        return [item.entry for item in load([self.corpus])[0]]


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path / "corpus")


def test_a_finished_finding_is_in_the_corpus_once_and_in_the_exchange(head):
    head.take("a-1", told(entry()))
    head.take("b-2", told(entry()))
    assert len(head.entries()) == 1
    assert head.gathered.is_new
    assert [line for line in head.said if line.startswith("new finding")] == head.said
    assert len(head.said) == 1
    for name in ("a-1", "b-2"):
        assert read_entry(head.corpus / "fleet" / name / PATH) == entry()


def test_others_hear_of_it_and_the_node_itself_does_not(head):
    head.take("a-1", told(entry()))
    heard, position = head.gathered.since(None, "b-2")
    assert {name: set(changes) for name, changes in heard.items()} == {"a-1": set(told(entry()))}
    assert head.gathered.since(None, "a-1")[0] == {}
    assert head.gathered.since(position, "b-2") == ({}, position)
    head.take("a-1", {PATH: None})
    assert PATH in head.gathered.since(position, "b-2")[0]["a-1"]


def test_what_is_not_shrunk_waits_for_the_end(head):
    head.take("a-1", told(entry(unshrunk=True)))
    assert head.entries() == []
    head.gathered.finish()
    assert len(head.entries()) == 1


def test_what_is_not_confirmed_stays_with_the_node(head):
    head.take("a-1", told(entry(confirmed=None, unshrunk=True)))
    head.gathered.finish()
    assert head.entries() == []


def test_the_shrunk_form_takes_the_place_of_the_one_that_was_not(head):
    head.take("a-1", told(entry(unshrunk=True)))
    head.gathered.finish()
    small = msgspec.structs.replace(make_case(), seed=7)
    again = Head(head.corpus)
    again.take("a-1", told(entry(small)))
    (kept,) = again.entries()
    assert kept.case == small
    assert not kept.unshrunk


def test_an_unfinished_finding_that_the_corpus_has_is_not_added_again(head):
    head.take("a-1", told(entry()))
    other = msgspec.structs.replace(make_case(), seed=9)
    head.take("b-2", told(entry(other, unshrunk=True)))
    head.gathered.finish()
    assert len(head.entries()) == 1


def test_a_head_that_comes_back_knows_what_was_told(head):
    head.take("a-1", told(entry()))
    again = Head(head.corpus)
    assert again.gathered.has_nodes
    heard, _ = again.gathered.since(None, "b-2")
    assert set(heard) == {"a-1", CORPUS_NAME}
    again.gathered.save()
    assert not again.gathered.is_new
    assert campaign_of(head.corpus) == campaign_of(head.corpus)


def test_nodes_hear_what_the_corpus_had(tmp_path):
    Head(tmp_path).take("a-1", told(entry()))
    (case,) = (tmp_path / "findings").glob(f"*/{CASE_FILE}")
    heard, _ = Head(tmp_path).gathered.since(None, "a-1")
    assert case.relative_to(tmp_path).as_posix() in heard[CORPUS_NAME]


def test_what_the_corpus_had_is_no_node(head):
    save_unshrunk(head.corpus, entry(), "")
    (head.corpus / "fleet").mkdir(exist_ok=True)
    assert not Head(head.corpus).gathered.has_nodes


def test_what_a_node_no_longer_has_when_it_returns_goes_away(head):
    head.take("a-1", {**told(entry(confirmed=None)), "node.json": (0.0, b"{}")})
    head.take("a-1", {"node.json": (0.0, b"{}")}, is_all=True)
    assert not (head.corpus / "fleet" / "a-1" / PATH).exists()
    assert (head.corpus / "fleet" / "a-1" / "node.json").exists()


def test_what_a_node_told_before_its_disk_was_lost_is_kept(head):
    head.take("a-1", told(entry(unshrunk=True)))
    head.gathered.begin("a-1")
    head.take("a-1", {"node.json": (0.0, b"{}")}, is_all=True)
    assert not (head.corpus / "fleet" / "a-1" / PATH).exists()
    assert (head.corpus / "fleet" / "a-1.1" / PATH).exists()
    head.gathered.finish()
    assert len(head.entries()) == 1


def test_a_full_disk_is_said_once_and_tried_again(head, monkeypatch):
    def fail(path: Path, data: bytes, **_: object) -> None:
        raise InfraError(f"cannot write {path}: No space left on device", "free some space")

    with monkeypatch.context() as patched:
        patched.setattr("fuzzshard.fleet.mirror.write_atomic", fail)
        head.take("a-1", told(entry()))
        head.gathered.finish()
        with pytest.raises(InfraError, match=r"not all is saved: .* No space left"):
            head.gathered.check_saved()
        assert len(head.said) == 1
        assert "No space left" in head.said[0]
    head.gathered.save()
    head.gathered.check_saved()
    assert len(head.entries()) == 1
    assert "writing works again" in head.said


def test_a_damaged_entry_is_said_once_and_passed_over(head):
    head.take("a-1", {PATH: (0.0, b"{")})
    head.take("b-2", told(entry()))
    head.gathered.finish()
    assert len(head.entries()) == 1
    assert sum(PATH in line for line in head.said) == 1


def test_a_path_that_escapes_is_refused(head):
    with pytest.raises(InvalidMessage):
        head.take("a-1", {"../b-2/node.json": (0.0, b"{}")})
    assert head.gathered.since(None, "b-2")[0] == {}
