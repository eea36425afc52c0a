from __future__ import annotations

from pathlib import Path

import pytest
import verdicts
from msgspec.structs import replace
from verdicts import PASS, crash, divergence

from fuzzshard.case import codec
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.outcome import Outcome
from fuzzshard.corpus.replay import ReplayResult, update
from fuzzshard.corpus.store import save_unshrunk
from fuzzshard.doctor import clean_case
from fuzzshard.verdict import Status, Verdict


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    told = verdicts.entry(issue="https://github.com/x/y/issues/1", notes={"kept": "yes"})
    return save_unshrunk(tmp_path, told, "print('old')\n")


def render(*_: object, **__: object) -> list[str]:
    return ["print('new')\n"]


def seen(folder: Path, outcome: Outcome, verdict: Verdict, torch: str = "2.14.0") -> str:
    return update(ReplayResult(folder, outcome, 1.0, "", torch, verdict), "cpu", render)


def entry_in(folder: Path) -> CorpusEntry:
    return read_entry(folder / "case.json")


def test_a_fix_is_written_and_the_rest_of_the_entry_stays(folder: Path) -> None:
    before = entry_in(folder)
    assert seen(folder, Outcome.FIXED, PASS) == "fixed, bad on 2.13.0, good on 2.14.0"
    assert entry_in(folder) == replace(before, lifecycle=Lifecycle.FIXED, good_on=("2.14.0",))
    assert (folder / "repro.py").read_text() == "print('old')\n"


def test_a_finding_that_is_the_same_on_a_new_torch_is_bad_there_too(folder: Path) -> None:
    assert seen(folder, Outcome.SAME, divergence()) == "open, bad on 2.13.0, 2.14.0"


def test_a_crash_that_moved_keeps_what_was_recorded(tmp_path: Path) -> None:
    now, before = (
        crash(f"IndexError in {name}", "out of range") for name in ("_reassemble", "copy_out")
    )
    folder = save_unshrunk(tmp_path, verdicts.entry(verdict=before), "")
    entry = entry_in(folder)
    assert seen(folder, Outcome.SAME, now) == "open, bad on 2.13.0, 2.14.0"
    assert entry_in(folder) == replace(entry, bad_on=("2.13.0", "2.14.0"))
    fixed = replace(entry, good_on=("2.14.0",), lifecycle=Lifecycle.FIXED)
    write_atomic(folder / "case.json", encode_entry(fixed))
    assert seen(folder, Outcome.CHANGED, now) == "open, bad on 2.13.0, 2.14.0"


def test_what_is_known_already_is_not_written(folder: Path) -> None:
    before = (folder / "case.json").stat().st_mtime_ns
    assert seen(folder, Outcome.SAME, divergence(), "2.13.0+cpu") == ""
    assert (folder / "case.json").stat().st_mtime_ns == before


def test_another_finding_of_the_same_release_is_recorded_with_a_new_script(folder: Path) -> None:
    now = seen(folder, Outcome.CHANGED, divergence("loss"), "2.13.0+cpu")
    assert now == "now divergence/fully_shard/loss"
    assert entry_in(folder).findings == divergence("loss").findings
    assert entry_in(folder).notes["kept"] == "yes"
    assert (folder / "repro.py").read_text() == "print('new')\n"


def test_another_finding_of_another_release_replaces_nothing(folder: Path) -> None:
    before = entry_in(folder)
    assert seen(folder, Outcome.CHANGED, divergence("loss")) == "open, bad on 2.13.0"
    said = {**before.notes, "torch 2.14.0": "shows divergence/fully_shard/loss"}
    assert entry_in(folder) == replace(before, notes=said)
    assert (folder / "repro.py").read_text() == "print('old')\n"


def test_a_case_that_is_to_pass_stays_so_whatever_it_shows(tmp_path: Path) -> None:
    bare, whole = tmp_path / "bare.json", tmp_path / "whole" / "case.json"
    write_atomic(bare, codec.encode(clean_case(2)))
    write_atomic(whole, encode_entry(CorpusEntry(case=clean_case(2))))
    for file, path in ((bare, bare), (whole, whole.parent)):
        before = file.read_bytes()
        assert seen(path, Outcome.CHANGED, divergence()) == ""
        assert file.read_bytes() == before


@pytest.mark.parametrize("outcome", [Outcome.INFRA, Outcome.INCONCLUSIVE])
def test_what_judges_nothing_changes_nothing(folder: Path, outcome: Outcome) -> None:
    assert seen(folder, outcome, Verdict(status=Status(outcome.value))) == ""


def test_a_run_on_another_kind_of_device_changes_nothing(folder: Path) -> None:
    result = ReplayResult(folder, Outcome.PASS, 1.0, "", "2.14.0", PASS)
    assert update(result, "cuda", render) == ""


def test_an_interrupted_update_leaves_the_entry_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / "case.json").read_bytes()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fuzzshard.corpus.files.os.fsync", interrupted)
    for verdict, outcome in ((PASS, Outcome.FIXED), (divergence("loss"), Outcome.CHANGED)):
        with pytest.raises(KeyboardInterrupt):
            seen(folder, outcome, verdict)
    assert (folder / "case.json").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == [
        "case.json",
        "repro.py",
        "unshrunk.json",
    ]
