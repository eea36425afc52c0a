from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import fuzzshard
from msgspec.structs import replace

from fuzzshard import cli
from fuzzshard.case.case import Case
from fuzzshard.corpus.atomic import write_atomic
from fuzzshard.corpus.causes import by_cause, causes_table, releases_table
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import LOOKED_UP, CorpusEntry, make_entry
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.store import NO_SCRIPT, save_shrunk
from fuzzshard.doctor import clean_case
from fuzzshard.mending.mend import own_mends
from fuzzshard.verdict import Finding, Status, Verdict

ROOT = Path(__file__).parents[2]
CORPORA = (Path("corpus/findings"), Path("corpus/findings-2.11"))
LATE = own_mends()["list_group_unshards_late"]


def entry(oracle: str, case: Case | None = None) -> CorpusEntry:
    finding = Finding(oracle=oracle, engine="fully_shard", observed="1", expected="2", op=0)
    verdict = Verdict(status=Status.DIVERGENCE, findings=(finding,))
    return make_entry(case or clean_case(2), verdict, {"torch": "2.13.0", "backend": "gloo"})


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two findings of one cause, one of them without a script, and one that nothing explains."""
    save_shrunk(tmp_path / "first", replace(entry("gradient"), cause=LATE.slug), "import torch\n")
    save_shrunk(
        tmp_path / "second", replace(entry("output"), cause=LATE.slug), f"{NO_SCRIPT}: why\n"
    )
    save_shrunk(tmp_path / "third", entry("loss"), "import torch\n")
    return tmp_path


def rows(*arguments: object, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit) as caught:
        cli.main(["corpus", *map(str, arguments)])
    assert caught.value.code == 0
    return capsys.readouterr().out.splitlines()


def test_a_cause_is_one_row_for_all_its_entries(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late, unknown = [
        line for line in rows("causes", corpus, capsys=capsys) if line.startswith("| ")
    ][2:]
    assert late.startswith(
        f"| {LATE.title} (`{LATE.slug}`) | fully_shard | {LATE.torch.text()} | mend "
        "| `divergence/fully_shard/gradient`<br>`divergence/fully_shard/output` | 2 | 1 of 2 "
        f'| "{LATE.contract.quote}" ({LATE.contract.source}) | '
    )
    assert "[pytorch 183702](https://github.com/pytorch/pytorch/issues/183702)" in late
    assert unknown == (
        "| not known: third |  |  |  | `divergence/fully_shard/loss` | 1 | 1 of 1 |  |  |"
    )


def test_releases_count_the_entries_of_a_cause_that_are_bad_and_good(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = read_entry(corpus / "second" / "case.json")
    seen = replace(seen, bad_on=("2.12.0",), good_on=("2.13.0", "2.14.1"))
    write_atomic(corpus / "second" / "case.json", encode_entry(seen))
    shown = rows("causes", corpus, "--torch", "2.14.1,2.13.0", capsys=capsys)
    assert [line for line in shown if line.startswith("| ")] == [
        "| root | entries | 2.13.0 | 2.14.1 |",
        "| --- | --- | --- | --- |",
        f"| {LATE.title} | 2 | 1 bad, 1 good | 1 good, 1 n/a |",
        "| not known: third | 1 | 1 bad | 1 n/a |",
        "| all | 3 | 2 bad, 1 good | 1 good, 2 n/a |",
    ]
    late = json.loads(rows("causes", corpus, "--json", capsys=capsys)[0])
    assert late["releases"] == {"2.12.0": [1, 0], "2.13.0": [1, 1], "2.14.1": [0, 1]}


def test_causes_as_json_name_their_entries(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late, unknown = map(json.loads, rows("causes", corpus, "--json", capsys=capsys))
    assert (late["name"], late["entries"], late["verified"]) == (LATE.slug, ["first", "second"], 1)
    assert unknown["entries"] == ["third"]


def test_a_script_that_did_not_show_the_finding_is_not_verified(corpus: Path) -> None:
    note = {"repro.py": "running it did not show the finding"}
    noted = replace(entry("gradient"), cause=LATE.slug, notes=note)
    write_atomic(corpus / "first" / "case.json", encode_entry(noted))
    assert [cause.verified for cause in by_cause(load([corpus])[0])] == [0, 1]


def test_how_an_issue_was_looked_for_can_be_written_and_removed(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows("mark", corpus / "third", "--looked-up", "none found", capsys=capsys)
    assert read_entry(corpus / "third" / "case.json").notes == {LOOKED_UP: "none found"}
    rows("mark", corpus / "third", "--looked-up", "", capsys=capsys)
    assert read_entry(corpus / "third" / "case.json").notes == {}


def test_only_a_mend_that_exists_can_be_written_as_a_cause(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows("mark", corpus / "third", "--cause", LATE.slug, capsys=capsys)
    assert read_entry(corpus / "third" / "case.json").cause == LATE.slug
    rows("mark", corpus / "third", "--cause", "", capsys=capsys)
    assert read_entry(corpus / "third" / "case.json").cause == ""
    assert fuzzshard("corpus", "mark", corpus / "third", "--cause", "typo") == 2
    assert "there is no mend typo" in capsys.readouterr().err


def test_an_entry_whose_cause_is_no_mend_is_a_row_of_its_own(corpus: Path) -> None:
    made_up = replace(entry("gradient"), cause="nowhere")
    write_atomic(corpus / "first" / "case.json", encode_entry(made_up))
    names = [cause.name for cause in by_cause(load([corpus])[0])]
    assert names == [LATE.slug, "not known: first", "not known: third"]


@pytest.mark.parametrize("corpus", CORPORA, ids=str)
def test_every_finding_of_our_own_has_a_cause(corpus: Path) -> None:
    causes = by_cause(load([ROOT / corpus])[0])
    assert [cause.name for cause in causes if cause.name not in own_mends()] == []


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
