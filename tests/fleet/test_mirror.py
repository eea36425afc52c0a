"""The folders of nodes travel as changes, and land nowhere else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fuzzshard.errors import InfraError, InvalidMessage
from fuzzshard.fleet.mirror import Changes, apply_changes, changes_since, check_node_name, snapshot


def write(folder: Path, name: str, text: str = "text", *, age: float = 0.0) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    os.utime(file, (time.time() - age, time.time() - age))
    return file


def mirrored(source: Path, target: Path) -> list[str]:
    """Brings ``target`` up to date; what had changed."""
    changes, _ = changes_since(source, snapshot(target))
    names = sorted(changes)
    apply_changes(target, changes)
    assert not changes
    return names


def test_a_folder_that_is_not_there_has_no_files(tmp_path):
    assert snapshot(tmp_path / "none") == {}


def test_a_copy_has_the_files_of_a_node_with_their_ages(tmp_path):
    write(tmp_path / "a", "node.json", "{}", age=300)
    write(tmp_path / "a", "findings/x-1/case.json")
    mirrored(tmp_path / "a", tmp_path / "b")
    assert sorted(snapshot(tmp_path / "b")) == ["findings/x-1/case.json", "node.json"]
    age = time.time() - (tmp_path / "b" / "node.json").stat().st_mtime
    assert 299 < age < 320


def test_what_is_no_file_of_an_exchange_stays_at_home(tmp_path):
    for name in (".node.json.1.tmp", "findings/x-1/.hidden", "other/x/case.json", "findings/f"):
        write(tmp_path / "a", name)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "a" / "stats.json").symlink_to(tmp_path / "secret")
    assert snapshot(tmp_path / "a") == {}


def test_only_what_has_changed_travels(tmp_path):
    write(tmp_path / "a", "node.json")
    write(tmp_path / "a", "findings/x-1/case.json")
    _, before = changes_since(tmp_path / "a", {})
    assert changes_since(tmp_path / "a", before) == ({}, before)
    write(tmp_path / "a", "findings/x-1/case.json", "shorter case")
    changes, _ = changes_since(tmp_path / "a", before)
    (change,) = changes.values()
    assert change is not None
    assert change[1] == b"shorter case"


def test_a_node_file_that_was_written_again_with_the_same_bytes_is_a_change(tmp_path):
    write(tmp_path / "a", "node.json", age=100)
    changes, before = changes_since(tmp_path / "a", {})
    apply_changes(tmp_path / "b", changes)
    write(tmp_path / "a", "node.json", age=5)
    changes, _ = changes_since(tmp_path / "a", before)
    assert list(changes) == ["node.json"]
    apply_changes(tmp_path / "b", changes)
    assert time.time() - (tmp_path / "b" / "node.json").stat().st_mtime < 50


def test_another_file_with_the_same_bytes_keeps_its_time(tmp_path):
    case = write(tmp_path / "b", "findings/x-1/case.json", age=100)
    before = case.stat().st_mtime_ns
    apply_changes(tmp_path / "b", {"findings/x-1/case.json": (1.0, b"text")})
    assert case.stat().st_mtime_ns == before


def test_an_entry_that_is_gone_goes_away_with_its_folder(tmp_path):
    for name in ("case.json", "repro.py"):
        write(tmp_path / "a", f"findings/x-1/{name}")
    _, before = changes_since(tmp_path / "a", {})
    apply_changes(tmp_path / "b", changes_since(tmp_path / "a", {})[0])
    for file in (tmp_path / "a" / "findings" / "x-1").iterdir():
        file.unlink()
    changes, _ = changes_since(tmp_path / "a", before)
    assert set(changes.values()) == {None}
    apply_changes(tmp_path / "b", changes)
    assert not list((tmp_path / "b" / "findings").iterdir())


def test_the_case_of_an_entry_is_written_last(tmp_path, monkeypatch):
    written: list[str] = []
    monkeypatch.setattr(
        "fuzzshard.fleet.mirror.write_atomic",
        lambda path, data, **_: written.append(path.relative_to(tmp_path).as_posix()),
    )
    names = ("case.json", "unshrunk.json", "repro.py")
    apply_changes(tmp_path, {f"findings/x-1/{name}": (0.0, b"") for name in names})
    assert written[-1] == "findings/x-1/case.json"
    assert len(written) == 3


def test_what_a_full_disk_has_no_room_for_is_left_to_try_again(tmp_path, monkeypatch):
    def fail(path: Path, data: bytes, **_: object) -> None:
        if path.name == "stats.json":
            raise InfraError(f"cannot write {path}", "free some space")

    monkeypatch.setattr("fuzzshard.fleet.mirror.write_atomic", fail)
    changes: Changes = {"node.json": (0.0, b"1"), "stats.json": (0.0, b"2")}
    with pytest.raises(InfraError):
        apply_changes(tmp_path, changes)
    assert list(changes) == ["stats.json"]


@pytest.mark.parametrize(
    "name",
    [
        "../node.json",
        "/etc/passwd",
        "findings/../../case.json",
        "findings/x-1/deeper/case.json",
        "findings/case.json",
        "other/x-1/case.json",
        "findings//case.json",
        "findings/x-1/.case.json",
        "findings/x-1/a\nb",
        "",
        ".",
        "..",
    ],
)
@pytest.mark.parametrize("change", [(0.0, b"text"), None], ids=["written", "deleted"])
def test_a_path_outside_of_the_folder_of_a_node_is_refused_with_all_others(tmp_path, name, change):
    with pytest.raises(InvalidMessage):
        apply_changes(tmp_path / "node", {"node.json": (0.0, b"{}"), name: change})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/a", ".hidden", "a b"])
def test_what_is_no_name_of_a_node_is_refused(name):
    with pytest.raises(InvalidMessage):
        check_node_name(name)
    check_node_name("host.example-12345678")
