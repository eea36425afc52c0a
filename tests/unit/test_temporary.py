"""Temporary folders go away with their process, and never before."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from fuzzshard.temporary import PREFIX, TemporaryFolder, remove_abandoned

HOLDS = """
import sys
from fuzzshard.temporary import TemporaryFolder

folder = TemporaryFolder()
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def folders(place: Path) -> list[Path]:
    return sorted(place.glob(f"{PREFIX}*"))


def test_a_folder_is_there_until_it_is_removed(place: Path) -> None:
    with TemporaryFolder() as folder:
        (folder / "file").touch()
        assert folders(place) == [folder]
    assert folders(place) == []


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_live_one_is_not(
    place: Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    (folder / "file").touch()
    remove_abandoned()
    assert folders(place) == [folder]
    process.kill()
    process.communicate()
    assert folders(place) == [folder]
    remove_abandoned()
    assert folders(place) == []


def test_what_is_of_others_stays(place: Path) -> None:
    """A folder with another name, one of another user, a file, and what a link leads to."""
    kept = [place / "fuzzshard-fleet-0", place / "elsewhere"]
    if os.geteuid() == 0:
        kept.append(place / f"{PREFIX}theirs")
    for folder in kept:
        folder.mkdir()
    if os.geteuid() == 0:
        os.chown(kept[-1], 12345, -1)
    (place / f"{PREFIX}link").symlink_to(kept[1])
    (place / f"{PREFIX}file").touch()
    remove_abandoned()

    assert all(folder.is_dir() for folder in kept)
    assert (place / f"{PREFIX}file").exists()


def test_no_new_folder_is_taken_for_an_abandoned_one(place: Path) -> None:
    is_over = threading.Event()

    def remove() -> None:
        while not is_over.is_set():
            remove_abandoned()

    others = [threading.Thread(target=remove) for _ in range(2)]
    for other in others:
        other.start()
    try:
        made = [TemporaryFolder() for _ in range(300)]
        there = [folder.path.is_dir() for folder in made]
    finally:
        is_over.set()
        for other in others:
            other.join()
    for folder in made:
        folder.remove()
    assert all(there)
