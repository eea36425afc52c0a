"""A file that holds no case, or one that is too large, costs one line and exit code 2, never a
traceback.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import make_case
from command_line import Ran, ran

from fuzzshard.case import codec

WHOLE = codec.encode(make_case())
BROKEN = {
    "truncated": (WHOLE[: len(WHOLE) // 2], "truncated"),
    "empty": (b"", "truncated"),
    "unknown": (WHOLE[:-1] + b',"colour":1}', "unknown field `colour`"),
    "newer": (b'{"format":99,"case":' + WHOLE + b"}", "its format is 99"),
    "binary": (b"\x80\x04\x95", "not a corpus entry"),
    "listed": (b"[1, 2]", "not a corpus entry"),
}
LARGE = codec.encode(make_case(mesh=64))


def write(folder: Path, name: str, data: bytes) -> Path:
    file = folder / f"{name}.json"
    file.write_bytes(data)
    return file


def assert_one_line(result: Ran, *texts: str) -> None:
    assert result.code == 2
    assert result.out == ""
    (line,) = result.error.splitlines()
    assert line.startswith("fuzzshard: ")
    for text in texts:
        assert text in line


@pytest.mark.parametrize(
    ("command", "name"),
    [*(("show", name) for name in BROKEN), ("repro", "newer"), ("shrink", "truncated")],
)
def test_a_broken_file_is_one_line_that_names_it(tmp_path: Path, command: str, name: str) -> None:
    data, problem = BROKEN[name]
    file = write(tmp_path, name, data)
    assert_one_line(ran(command, file), str(file), problem)


@pytest.mark.parametrize("command", ["show", "repro", "shrink", "replay"])
def test_a_path_that_is_not_there_is_one_line(tmp_path: Path, command: str) -> None:
    assert_one_line(ran(command, tmp_path / "nowhere"), "nowhere does not exist")


@pytest.mark.parametrize("size", [(), ("--world-size", 2)])
def test_shrinking_starts_no_world_for_a_mesh_it_has_no_ranks_for(
    tmp_path: Path, size: tuple
) -> None:
    file = write(tmp_path, "large", LARGE)
    assert_one_line(ran("shrink", file, "--device", "cpu", *size), "the mesh needs 64 ranks")


@pytest.mark.parametrize("command", ["show", "repro"])
def test_a_mesh_of_any_size_can_be_shown_and_printed(tmp_path: Path, command: str) -> None:
    assert ran(command, write(tmp_path, "large", LARGE)).code == 0


@pytest.mark.slow
def test_broken_entries_do_not_keep_the_others_from_being_replayed(tmp_path: Path) -> None:
    for name, (data, _) in BROKEN.items():
        write(tmp_path, name, data)
    write(tmp_path, "large", LARGE)
    write(tmp_path, "whole", codec.encode(make_case()))
    result = ran("replay", tmp_path, "--device", "cpu", "--world-size", 2)
    assert result.code == 2
    assert result.error == ""
    *lines, summary = result.out.splitlines()
    outcomes = {Path(line.split()[1]).stem: line.split()[0] for line in lines}
    assert outcomes == {**dict.fromkeys(BROKEN, "INVALID"), "large": "SKIPPED", "whole": "PASS"}
    assert summary == "replayed 8: 1 PASS, 1 SKIPPED, 6 INVALID"


def test_a_preload_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    for command in (("run", "--max-cases", 1), ("replay", write(tmp_path, "whole", WHOLE))):
        result = ran(*command, "--device", "cpu", "--preload", tmp_path / "missing.py")
        assert_one_line(result, "missing.py, to be preloaded, is not a file")
