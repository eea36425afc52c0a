"""Reading files of others: no device, pipe, link or size makes a reader wait or fill memory."""

import os
from pathlib import Path

import pytest

from fuzzshard.corpus.files import read_regular


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_bytes(b"12345")

    assert read_regular(file, most=5) == b"12345"


def test_a_larger_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_bytes(b"12345")

    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(file, most=4)


def test_neither_a_pipe_nor_a_device_nor_a_folder_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(path)
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(tmp_path)


def test_a_link_is_followed_unless_others_write_there(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"1")
    link.symlink_to(file)

    assert read_regular(link) == b"1"
    with pytest.raises(OSError, match="symbolic link"):
        read_regular(link, below=tmp_path)


def test_a_path_with_a_null_character_is_an_os_error() -> None:
    with pytest.raises(OSError, match="not a path"):
        read_regular(Path("a\0b"))
