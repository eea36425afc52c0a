from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
from verdicts import entry

from fuzzshard.campaign.finding_store import is_in_work
from fuzzshard.case import codec
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.store import (
    CASE_FILE,
    entry_files,
    only_case,
    replay_command,
    save_recordings,
    save_shrunk,
    save_unshrunk,
)
from fuzzshard.doctor import clean_case
from fuzzshard.errors import InfraError, UsageError

CASE = clean_case(2)
SMALLER = clean_case(1)
ENTRY = entry(CASE)
SHRUNK = entry(SMALLER)


CORPUS = Path(__file__).parents[2] / "corpus"


def test_no_committed_finding_that_torch_still_has_is_in_work() -> None:
    entries = {file.parent.name: read_entry(file) for file in CORPUS.rglob(CASE_FILE)}
    assert len(entries) > 100
    left = [name for name, entry in entries.items() if is_in_work(entry)]
    assert [name for name in left if entries[name].lifecycle is not Lifecycle.FIXED] == []


def test_a_saved_finding_has_its_case_its_script_and_the_case_as_found(tmp_path: Path) -> None:
    folder = save_unshrunk(tmp_path, ENTRY, "print(1)\n")
    assert sorted(p.name for p in folder.iterdir()) == ["case.json", "repro.py", "unshrunk.json"]
    assert folder.parent == tmp_path / "findings"
    assert (folder / "repro.py").read_text() == "print(1)\n"


def test_shrinking_replaces_the_case_and_keeps_the_case_as_found(tmp_path: Path) -> None:
    folder = save_unshrunk(tmp_path, ENTRY, "print(1)\n")
    save_shrunk(folder, SHRUNK, "print(2)\n")
    assert read_entry(folder / "case.json").case == SMALLER
    assert codec.decode((folder / "unshrunk.json").read_bytes()) == CASE
    assert (folder / "repro.py").read_text() == "print(2)\n"


def test_what_the_flight_recorder_said_lies_beside_an_entry_and_is_none(tmp_path: Path) -> None:
    folder = save_unshrunk(tmp_path, ENTRY, "print(1)\n")
    save_recordings(folder, {"rank0": "{}", "rank1": "[]"})
    assert (folder / "flight_recorder_rank1.json").read_text() == "[]"
    assert entry_files([tmp_path]) == [folder / "case.json"]


def test_finding_the_same_case_again_keeps_its_shrunk_form(tmp_path: Path) -> None:
    folder = save_unshrunk(tmp_path, ENTRY, "print(1)\n")
    save_shrunk(folder, SHRUNK, "print(2)\n")
    assert save_unshrunk(tmp_path, ENTRY, "print(1)\n") == folder
    assert read_entry(folder / "case.json").case == SMALLER


def test_finding_the_same_case_again_repairs_a_corrupt_entry(tmp_path: Path) -> None:
    folder = save_unshrunk(tmp_path, ENTRY, "print(1)\n")
    (folder / "case.json").write_text("{")
    save_unshrunk(tmp_path, ENTRY, "print(1)\n")
    assert read_entry(folder / "case.json").case == CASE


def test_a_saved_entry_says_how_to_replay_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save_unshrunk(Path("my corpus"), ENTRY, "")
    assert read_entry(folder / "case.json").replay == f"fuzzshard replay '{folder}'"


@pytest.mark.parametrize(
    ("corpus", "said"), [("here/corpus", "corpus/findings"), ("elsewhere", "findings")]
)
def test_an_entry_says_how_to_replay_it_without_the_path_of_its_machine(
    corpus: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder = save_unshrunk(tmp_path / corpus, ENTRY, "")
    assert read_entry(folder / "case.json").replay == f"fuzzshard replay {said}/{folder.name}"


def test_a_replay_command_restores_the_conditions_of_the_finding() -> None:
    of_cuda = msgspec.structs.replace(ENTRY, device="cuda", preload=("/tmp/p.py",))
    expected = "fuzzshard replay x --device cuda --preload /tmp/p.py"
    assert replay_command(Path("x"), of_cuda) == expected


def test_files_are_found_in_a_corpus_a_folder_an_entry_and_by_name(tmp_path: Path) -> None:
    folder = save_unshrunk(tmp_path, ENTRY, "")
    bare = tmp_path / "upstream" / "mlp.json"
    write_atomic(bare, codec.encode(CASE))
    case = folder / "case.json"
    assert entry_files([tmp_path]) == [case, bare]
    assert entry_files([folder]) == entry_files([case]) == [case]
    assert entry_files([bare]) == [bare]
    assert entry_files([folder / "unshrunk.json"]) == [folder / "unshrunk.json"]


def test_a_file_named_twice_is_found_once(tmp_path: Path) -> None:
    folder = save_unshrunk(tmp_path, ENTRY, "")
    assert entry_files([tmp_path, folder, folder / "case.json"]) == [folder / "case.json"]


def test_hidden_files_below_a_folder_are_not_cases_but_the_folder_may_be_hidden(
    tmp_path: Path,
) -> None:
    corpus = tmp_path / ".hidden"
    write_atomic(corpus / "a.json", codec.encode(CASE))
    write_atomic(corpus / ".trash" / "b.json", codec.encode(CASE))
    assert entry_files([corpus]) == [corpus / "a.json"]


def test_a_path_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        entry_files([tmp_path / "missing"])


def test_one_case_is_not_none_and_not_two(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no case"):
        only_case(tmp_path)
    for case in (CASE, SMALLER):
        save_unshrunk(tmp_path, entry(case), "")
    with pytest.raises(UsageError, match="2 cases"):
        only_case(tmp_path)


def test_a_full_disk_is_one_line_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "case.json"
    write_atomic(path, b"old")

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InfraError, match="No space left on device") as caught:
        write_atomic(path, b"new")
    assert str(path) in str(caught.value)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["case.json"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "corpus").write_text("a file")
    with pytest.raises(InfraError, match="cannot write"):
        save_unshrunk(tmp_path / "corpus", ENTRY, "")


def test_an_entry_whose_writing_was_cut_short_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fuzzshard.corpus.files.os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_unshrunk(tmp_path, ENTRY, "")
    assert entry_files([tmp_path]) == []


def test_entries_are_written_the_same_every_time(tmp_path: Path) -> None:
    def written(entry: CorpusEntry) -> bytes:
        return (save_unshrunk(tmp_path, entry, "") / "case.json").read_bytes()

    first = written(ENTRY)
    (tmp_path / "findings").rename(tmp_path / "elsewhere")
    assert written(entry()) == first
