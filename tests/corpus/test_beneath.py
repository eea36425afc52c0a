"""Folders that others write to as well: what is read and written there stays there."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path

import pytest

from fuzzshard.corpus.files import open_folder, read_regular, remove_below, write_atomic
from fuzzshard.errors import InfraError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "file").write_bytes(b"secret")
    return tmp_path / "shared"


@pytest.fixture
def private(shared: Path) -> Path:
    return shared.with_name("private")


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_link_at_any_depth_is_neither_read_nor_written_through(
    shared: Path, private: Path, depth: int
) -> None:
    link = shared.joinpath(*"ab"[:depth], "link")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(private)

    with pytest.raises(OSError, match="link is a symbolic link"):
        read_regular(link / "file", below=shared)
    with pytest.raises(InfraError, match="link is a symbolic link"):
        write_atomic(link / "new", b"", below=shared)
    with pytest.raises(OSError, match="link is a symbolic link"):
        remove_below(link / "file", below=shared)
    assert [file.name for file in private.iterdir()] == ["file"]


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(
    shared: Path, private: Path
) -> None:
    link = shared / "ours" / "file"
    link.parent.mkdir()
    link.symlink_to(private / "file")

    with pytest.raises(OSError, match="symbolic link"):
        read_regular(link, below=shared)
    write_atomic(link, b"ours", below=shared)
    assert read_regular(link, below=shared) == b"ours"
    assert (private / "file").read_bytes() == b"secret"


def test_a_link_is_removed_and_not_what_it_leads_to(shared: Path, private: Path) -> None:
    (shared / "ours").mkdir()
    (shared / "ours" / "link").symlink_to(private)
    remove_below(shared / "ours" / "link", below=shared)
    (shared / "ours" / "link").symlink_to(private)
    remove_below(shared / "ours", below=shared)
    remove_below(shared / "ours", below=shared)

    assert list(shared.iterdir()) == []
    assert (private / "file").read_bytes() == b"secret"


def test_a_link_to_the_shared_folder_itself_is_followed(shared: Path) -> None:
    mount = shared.with_name("mount")
    mount.symlink_to(shared)
    write_atomic(mount / "a" / "file", b"1", below=mount)

    assert read_regular(shared / "a" / "file") == b"1"


@as_root
@pytest.mark.parametrize("theirs", ["ours", "ours/findings"])
def test_nothing_is_written_into_a_folder_of_another_user(shared: Path, theirs: str) -> None:
    folder = shared / "ours" / "findings"
    folder.mkdir(parents=True)
    os.chown(shared / theirs, 12345, -1)

    with pytest.raises(InfraError, match=f"{theirs} belongs to another user"):
        write_atomic(folder / "file", b"", below=shared)
    assert list(folder.iterdir()) == []


@as_root
def test_a_file_system_that_gives_files_away_gives_away_folders_too(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)  # all that is made belongs to root
    write_atomic(shared / "ours" / "file", b"1", below=shared)

    assert [file.name for file in (shared / "ours").iterdir()] == ["file"]


def test_a_shared_folder_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    with pytest.raises(InfraError, match="No such file"):
        write_atomic(tmp_path / "shared" / "ours" / "file", b"", below=tmp_path / "shared")
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_file_that_is_a_link_is_not_written_through(
    shared: Path, private: Path
) -> None:
    (shared / "ours").mkdir()
    name = f".file.{os.getpid()}.{threading.get_native_id()}.tmp"
    (shared / "ours" / name).symlink_to(private / "file")
    write_atomic(shared / "ours" / "file", b"1", below=shared)

    assert (private / "file").read_bytes() == b"secret"


def test_what_a_neighbour_changes_in_between_never_leads_elsewhere(
    shared: Path, private: Path
) -> None:
    """A folder and a link take turns at one name, as often as the neighbour can."""
    folder, aside = shared / "ours", shared / "aside"
    folder.mkdir()
    (folder / "file").write_bytes(b"ours")
    is_over = threading.Event()

    def swap() -> None:
        link = shared / secrets.token_hex(4)
        while not is_over.is_set():
            folder.rename(aside)
            link.symlink_to(private)
            link.rename(folder)
            folder.unlink()
            aside.rename(folder)

    seen = {read_regular(folder / "file", below=shared)}
    neighbour = threading.Thread(target=swap)
    neighbour.start()
    try:
        for _ in range(3000):
            try:
                seen.add(read_regular(folder / "file", below=shared))
                with open_folder(folder, below=shared) as handle:
                    seen.update(name.encode() for name in os.listdir(handle))
            except OSError as error:
                seen.add((error.strerror or "").partition(" is ")[2].encode())
    finally:
        is_over.set()
        neighbour.join()
    assert b"ours" in seen
    assert b"secret" not in seen
