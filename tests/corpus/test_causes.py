from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from fuzzshard import cli
from fuzzshard.case.case import Case
from fuzzshard.corpus.atomic import write_atomic
from fuzzshard.corpus.causes import CAUSES_FILE, by_cause, causes_table, read_causes, releases_table
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import CONTRACT, LOOKED_UP, CorpusEntry, make_entry
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.store import NO_SCRIPT, save_shrunk
from fuzzshard.doctor import clean_case
from fuzzshard.errors import UsageError
from fuzzshard.verdict import Finding, Status, Verdict

ROOT = Path(__file__).parents[2]
CORPORA = (Path("corpus/findings"), Path("corpus/findings-2.11"))
ISSUE = "https://github.com/pytorch/pytorch/issues/1"


def entry(oracle: str, case: Case | None = None) -> CorpusEntry:
    finding = Finding(oracle=oracle, engine="fully_shard", observed="1", expected="2", op=0)
    verdict = Verdict(status=Status.DIVERGENCE, findings=(finding,))
    return make_entry(case or clean_case(2), verdict, {"torch": "2.13.0", "backend": "gloo"})


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two findings of one cause, one of them without a script, and one that nobody has read."""
    save_shrunk(tmp_path / "first", replace(entry("gradient"), issue=ISSUE), "import torch\n")
    save_shrunk(
        tmp_path / "second", replace(entry("output"), notes={CONTRACT: "a | b"}), f"{NO_SCRIPT}: why\n"
    )
    save_shrunk(tmp_path / "third", entry("loss"), "import torch\n")
    (tmp_path / CAUSES_FILE).write_text('"too late" = ["first", "second"]\n"nowhere" = ["gone"]\n')
    return tmp_path


def rows(*arguments: object, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit) as caught:
        cli.main(["corpus", *map(str, arguments)])
    assert caught.value.code == 0
    return capsys.readouterr().out.splitlines()


def test_a_cause_is_one_row_for_all_its_entries(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late, unread = [line for line in rows("causes", corpus, capsys=capsys) if line.startswith("| ")][1:]
    assert late == (
        "| too late | `divergence/fully_shard/gradient`<br>`divergence/fully_shard/output` | fully_shard | 2 "
        f"| 1 of 2 | open | a \\| b | [pytorch 1]({ISSUE}) |"
    )
    assert "any other" not in late
    symptoms = '"too late" = { symptoms = ["crash/*"], entries = ["first", "second"] }'
    (corpus / CAUSES_FILE).write_text(symptoms)
    assert (
        "`divergence/fully_shard/output`<br>any other `crash/*` |"
        in rows("causes", corpus, capsys=capsys)[-2]
    )
    assert unread.startswith(
        "| not known: third | `divergence/fully_shard/loss` | fully_shard | 1 | 1 of 1 |"
    )


def test_releases_count_the_entries_of_a_cause_that_are_bad_and_good(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = read_entry(corpus / "second" / "case.json")
    seen = replace(seen, bad_on=("2.12.0",), good_on=("2.13.0", "2.14.1"))
    write_atomic(corpus / "second" / "case.json", encode_entry(seen))
    shown = rows("causes", corpus, "--torch", "2.14.1,2.13.0", capsys=capsys)
    assert [line for line in shown if line.startswith("| ")] == [
        "| cause | entries | 2.13.0 | 2.14.1 |",
        "| --- | --- | --- | --- |",
        "| too late | 2 | 1 bad, 1 good | 1 good, 1 n/a |",
        "| not known: third | 1 | 1 bad | 1 n/a |",
        "| all | 3 | 2 bad, 1 good | 1 good, 2 n/a |",
    ]
    late = json.loads(rows("causes", corpus, "--json", capsys=capsys)[0])
    assert late["releases"] == {"2.12.0": [1, 0], "2.13.0": [1, 1], "2.14.1": [0, 1]}


def test_causes_as_json_name_their_entries(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late, unread = map(json.loads, rows("causes", corpus, "--json", capsys=capsys))
    assert (late["entries"], late["verified"]) == (["first", "second"], 1)
    assert unread["entries"] == ["third"]


def test_a_script_that_did_not_show_the_finding_is_not_verified(corpus: Path) -> None:
    noted = replace(entry("gradient"), notes={"repro.py": "running it did not show the finding"})
    write_atomic(corpus / "first" / "case.json", encode_entry(noted))
    assert [cause.verified for cause in by_cause(load([corpus])[0])] == [0, 1]


def test_how_an_issue_was_looked_for_can_be_written_and_removed(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows("mark", corpus / "third", "--looked-up", "none found", capsys=capsys)
    assert read_entry(corpus / "third" / "case.json").notes == {LOOKED_UP: "none found"}
    assert "| none found |" in causes_table(by_cause(load([corpus])[0]), corpus)
    rows("mark", corpus / "third", "--looked-up", "", capsys=capsys)
    assert read_entry(corpus / "third" / "case.json").notes == {}


def test_a_file_of_causes_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / CAUSES_FILE).write_text('"late" = { entries = ["a"], symptom = ["crash/*"] }')
    with pytest.raises(UsageError, match="symptom"):
        read_causes(tmp_path / CAUSES_FILE)
    (tmp_path / CAUSES_FILE).write_text("no toml")
    with pytest.raises(UsageError, match=CAUSES_FILE):
        read_causes(tmp_path / CAUSES_FILE)


@pytest.mark.parametrize("corpus", CORPORA, ids=str)
def test_every_finding_of_our_own_has_a_cause_a_contract_and_was_looked_up(corpus: Path) -> None:
    causes = by_cause(load([ROOT / corpus])[0])
    lacking = [
        c.cause for c in causes if not c.contract or not (c.issues or c.looked_up) or "not known" in c.cause
    ]
    assert not lacking


@pytest.mark.parametrize("corpus", CORPORA, ids=str)
def test_the_table_of_our_own_findings_is_up_to_date(corpus: Path) -> None:
    """``fuzzshard corpus causes corpus/findings > corpus/findings/FINDINGS.md`` writes it anew."""
    table = causes_table(by_cause(load([ROOT / corpus])[0]), corpus)
    assert (ROOT / corpus / "FINDINGS.md").read_text() == table


@pytest.mark.parametrize("corpus", CORPORA, ids=str)
def test_the_releases_of_our_own_findings_are_up_to_date(corpus: Path) -> None:
    """The command that is in the page writes it anew."""
    page = (ROOT / corpus / "RELEASES.md").read_text()
    (releases,) = re.findall(r"--torch (\S+)", page)
    assert page == releases_table(by_cause(load([ROOT / corpus])[0]), corpus, releases.split(","))
