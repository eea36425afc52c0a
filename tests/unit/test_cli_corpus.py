"""``fuzzshard corpus`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import command_line
import pytest
from msgspec.structs import replace
from verdicts import divergence, entry, finding

from fuzzshard import reproducer
from fuzzshard.case import codec
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import Confirmation
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.store import save_unshrunk
from fuzzshard.doctor import clean_case
from fuzzshard.verdict import Status, Verdict

FINDING = finding(op=2, name="up.weight")
ENTRY = entry(
    verdict=Verdict(status=Status.DIVERGENCE, findings=(FINDING,)),
    confirmed=Confirmation(runs=3, reproduced=2),
)


def fuzzshard(*arguments: object) -> int:
    return command_line.fuzzshard("corpus", *arguments)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """One finding and one case that is to pass."""
    script = reproducer.script(
        clean_case(2), signature=ENTRY.signature, finding=FINDING, torch_version="2.13.0"
    )
    save_unshrunk(tmp_path / "corpus", ENTRY, script)
    write_atomic(tmp_path / "corpus" / "regressions" / "clean.json", codec.encode(clean_case(1)))
    return tmp_path / "corpus"


def finding_in(corpus: Path) -> Path:
    (folder,) = (corpus / "findings").iterdir()
    return folder


def test_list_has_a_line_for_each_entry(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzzshard("list", corpus) == 0
    head, finding, bare, count = capsys.readouterr().out.splitlines()
    assert head.split() == ["severity", "component", "status", "cause", "entry"]
    name = f"findings/{finding_in(corpus).name}"
    assert finding.split() == ["silent", "flaky", name]
    assert bare.split() == ["regressions/clean.json"]
    assert count == f"2 entries in {corpus}"


def test_list_has_the_worst_first_and_what_only_an_instrument_sees_behind_it(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("ddp hooks", "fully_shard hooks", "fully_shard deadline"):
        engine, oracle = place.split()
        save_unshrunk(corpus, entry(verdict=divergence(oracle, engine)), "")
    assert fuzzshard("list", corpus, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    severities = [row["severity"] for row in rows]
    assert severities == ["silent", "hang", "internal", "internal", ""]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--severity", "SIL*"], ["findings"]),
        (["--severity", "crash", "--severity", "silent"], ["findings"]),
        (["--severity", "silent", "--status", "open"], []),
        (["--status", "unshrunk"], ["findings"]),
        (["--engine", "ddp"], ["regressions"]),
        (["--cause", ""], ["findings", "regressions"]),
        (["--component", "?*"], []),
    ],
)
def test_list_has_the_entries_that_are_asked_for(
    corpus: Path, options: list[str], names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    unshrunk = replace(ENTRY, unshrunk=True)
    write_atomic(finding_in(corpus) / "case.json", encode_entry(unshrunk))
    assert fuzzshard("list", corpus, "--json", *options) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(row["path"]).relative_to(corpus).parts[0] for row in rows] == names


def test_list_says_when_no_entry_is_as_asked(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzzshard("list", corpus, "--severity", "grave") == 0
    assert capsys.readouterr().out == "none of 2 entries is like that\n"


def test_list_fits_a_narrow_terminal_and_keeps_the_ends_of_names(
    corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert fuzzshard("list", corpus / "findings") == 0
    _, finding, _ = capsys.readouterr().out.splitlines()
    assert len(finding) <= 60
    assert finding.endswith(f"…{finding_in(corpus).name[-8:]}")


def test_list_as_json_has_an_object_for_each_entry(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzzshard("list", corpus, "--json") == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["status"], first["rate"], second["signature"]) == ("flaky", "2/3", "")
    assert (first["modules"], first["ops"], first["engines"]) == (2, 8, ["fully_shard"])


def test_list_names_what_cannot_be_read(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_atomic(corpus / "broken.json", b"{")
    assert fuzzshard("list", corpus) == 2
    assert "broken.json: not a corpus entry" in capsys.readouterr().out.splitlines()[-1]


def test_verify_passes_what_is_whole(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzzshard("verify", corpus) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "verified 2: 2 OK"


@pytest.mark.parametrize(
    ("name", "data", "condition", "code"),
    [
        ("repro.py", b"print('by hand')\n", "STALE", 0),
        ("repro.py", b"# No reproducer could be generated: never mind\n", "UNSCRIPTED", 0),
        ("repro.py", b"\xff", "MISSING", 2),
        ("unshrunk.json", b"{", "INVALID", 2),
        ("case.json", b"{", "INVALID", 2),
    ],
)
def test_verify_says_what_is_wrong_with_an_entry(
    corpus: Path,
    name: str,
    data: bytes,
    condition: str,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (finding_in(corpus) / name).write_bytes(data)
    assert fuzzshard("verify", corpus / "findings") == code
    first, summary = capsys.readouterr().out.splitlines()
    assert first.split()[0] == condition
    assert summary == f"verified 1: 1 {condition}"


@pytest.mark.parametrize(
    ("lifecycle", "fails", "code"),
    [
        (Lifecycle.OPEN, True, 0),
        (Lifecycle.OPEN, False, 3),
        (Lifecycle.FIXED, True, 3),
        (Lifecycle.FIXED, False, 0),
        (Lifecycle.FLAKY, False, 0),
    ],
)
def test_verify_runs_scripts_and_holds_them_against_the_lifecycle(
    corpus: Path, lifecycle: Lifecycle, fails: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = replace(ENTRY, lifecycle=lifecycle, bad_on=(), good_on=())
    write_atomic(finding_in(corpus) / "case.json", encode_entry(entry))
    monkeypatch.setattr(
        "fuzzshard.reproducer.check",
        lambda *_, **__: SimpleNamespace(fails=fails, output="AssertionError: observed"),
    )
    assert fuzzshard("verify", corpus / "findings", "--run", "--device", "cpu") == code


def test_merge_counts_what_it_did(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = corpus.parent / "all"
    assert fuzzshard("merge", corpus, "--into", target) == 0
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "merged 2: 2 added, 0 replaced, 0 updated, 0 known"
    )
    assert fuzzshard("merge", target, "--into", target) == 0
    assert capsys.readouterr().out.splitlines() == [
        "merged 0: 0 added, 0 replaced, 0 updated, 0 known"
    ]


def test_mark_writes_the_lifecycle_and_the_issue(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finding_in(corpus)
    before = read_entry(folder / "case.json")
    link = "https://github.com/pytorch/pytorch/issues/1"
    marked = replace(before, lifecycle=Lifecycle.WONTFIX, issue=link)
    assert fuzzshard("mark", folder, "--lifecycle", "wontfix", "--issue", link) == 0
    assert read_entry(folder / "case.json") == marked
    assert fuzzshard("mark", folder, "--issue", "") == 0
    assert read_entry(folder / "case.json") == replace(marked, issue="")
    assert capsys.readouterr().out.splitlines() == [
        f"wontfix  {folder}  {link}",
        f"wontfix  {folder}",
    ]
