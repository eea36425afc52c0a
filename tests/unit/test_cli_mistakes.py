"""Mistakes on the command line: a line that says what is wrong and what to do, no Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import fuzzshard
from msgspec.structs import replace
from verdicts import entry

from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.store import save_unshrunk
from fuzzshard.doctor import clean_case

PYTHON = re.compile(
    r"Literal|NoneType|Traceback|Error\(|Exception|\bint\b|\bstr\b|PosixPath|\['|object at 0x|<cl"
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an entry, ``e``, a file that is none, and nothing else."""
    saved = save_unshrunk(tmp_path, entry(replace(clean_case(2), seed=1)), "print('script')\n")
    saved.rename(tmp_path / "e")
    (tmp_path / "note.txt").write_text("hello\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run --max-cases many", '--max-cases takes a whole number, not "many"'),
        ("run --seed 1.5", '--seed takes a whole number, not "1.5"'),
        ("check a.py:b --inputs a.py:c --steps 2.0", '--steps takes a whole number, not "2.0"'),
        ("run --worlds many", '--worlds takes a whole number or auto, not "many"'),
        ("run --max-time soon", "--max-time: 'soon' is not a duration; write 90s, 10m or 2h"),
        ("run --engine fsdp2", 'not "fsdp2". Did you mean "fully_shard"?'),
        ("run --only engine:fsdp2", "did you mean engine:fully_shard?"),
        ("check a.py:b --inputs a.py:c --engine FSDP", 'Did you mean "fully_shard"?'),
        ("check a.py:b --inputs a.py:c --engine hsdp", 'Did you mean "fully_shard"?'),
        ("check a.py:b --inputs a.py:c --engine distributeddataparallel", 'mean "ddp"?'),
        ("run --confirm 0", "Must be >= 1"),
        ("run --max-time -5s", '--max-time must not be negative, and is "-5s"; see fuzzshard run'),
        ("run --max-findings", "--max-findings needs a value; see fuzzshard run --help"),
        ("run --corpus note.txt", "note.txt is a file; give a folder"),
        ("run extra", '"extra" is one argument too many'),
        ("show", "PATH is missing; see fuzzshard show --help"),
        ("show note.txt", "note.txt is no case file"),
        ("show nowhere", "nowhere is neither a file nor a known bug"),
        ("show reshard_is_ignore", 'Did you mean "reshard_is_ignored"?; fuzzshard corpus causes'),
        ("html e -o nowhere/x.html", "there is no folder nowhere; make it"),
        ("html e -o e", "e is a folder; give the name of a file"),
        ("html note.txt", "note.txt is no case file"),
        ("status empty", "empty has neither a campaign nor a finding"),
        ("merge e", "--into is missing"),
        ("merge e --into note.txt", "note.txt is a file; give a folder"),
        ("corpus lst", 'there is no command "lst". Did you mean "list"?; see fuzzshard corpus'),
        ("corpus causes e --torch newest", '"newest" is no version of torch'),
        ("bisect e --runs x", '--runs takes a whole number, not "x"'),
        ("bisect e --runs 0", "Must be >= 1"),
        ("report e --runs 0", "Must be >= 1"),
        ("corpus verify e --worlds 2", "--worlds is for --causes"),
        ("bisect e --good 2.x", '"2.x" is no version of torch'),
        ("bisect empty", "empty holds no case; give one entry"),
        ("shrink empty", "empty holds no case; give one entry"),
        ("repro e -o nowhere/x.py", "there is no folder nowhere; make it"),
        ("report e -o nowhere/x.md", "there is no folder nowhere; make it"),
        ("replay --world-size 0 e", "a world of 0 ranks runs nothing; use --world-size 1 or more"),
        ("replay --device tpu e", 'Choose from: "auto", "cpu", "cuda"'),
        ("explain e --extra-mends nowhere", "nowhere has no mend"),
        ("check", "a check needs a model and its inputs"),
        ("check m:b --inputs m:c --mesh dp_shrad=2", 'Did you mean "dp_shard"?'),
        (
            "check m:b --inputs m:c --parallelize m:p --fuzz plan",
            "--fuzz cannot vary the plan: parallelize wraps the model",
        ),
        (
            "check m:b --inputs m:c --fuzz freeze,mesh",
            "--fuzz cannot vary the mesh: there is only one; name another with --mesh",
        ),
        ("check m:build --inputs m:batch --max-cases 3", "are limits of --fuzz; add --fuzz all"),
        ("explode", 'there is no command "explode"; see fuzzshard --help'),
        ("replay nowhere", "nowhere does not exist"),
        ("repro nowhere", "nowhere does not exist"),
        ("shrink nowhere", "nowhere does not exist"),
        ("show --unknown", "--unknown"),
        ("doctor --device cpu --world-size 0", "use --world-size 1 or more"),
        ("doctor --device cpu --world-size 1000000", "is too large for the"),
        ("corpus merge --into x", "merge needs a path"),
        ("corpus list nowhere", "nowhere does not exist"),
        ("corpus mark x", "give --lifecycle, --issue, --contract, --looked-up or --cause"),
        ("corpus mark x --issue 1234", "1234 is no address"),
        ("corpus mark x --lifecycle done", "done"),
    ],
)
def test_a_mistake_is_said_in_one_line_without_python(
    here: Path, command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(here.rglob("*"))
    assert fuzzshard(*command.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert said in line
    assert not PYTHON.search(line), line
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("command", ["replay --device cpu", "corpus verify"])
def test_the_path_of_a_file_that_cannot_be_read_is_said_once(
    command: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "note.json").write_text("hello\n")
    assert fuzzshard(*command.split(), "note.json") == 2
    line, _ = capsys.readouterr().out.splitlines()
    assert line.startswith("INVALID")
    assert line.count("note.json") == 1


def test_a_place_where_nothing_can_be_written_needs_no_free_space(here: Path) -> None:
    with pytest.raises(Exception, match="; choose another place"):
        write_atomic(here / "note.txt" / "x", b"")
