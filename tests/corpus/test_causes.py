from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import fuzzshard
from findings_page import findings_page, main
from msgspec.structs import replace
from verdicts import divergence, entry

from fuzzshard import cli
from fuzzshard.corpus.causes import by_cause
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import LOOKED_UP
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.store import NO_SCRIPT, save_shrunk
from fuzzshard.mending.mend import own_mends

ROOT = Path(__file__).parents[2]
CORPORA = (Path("corpus/findings"),)
LATE = own_mends()["list_group_unshards_late"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two findings of one cause, one of them without a script, and one that nothing explains."""
    save_shrunk(
        tmp_path / "first",
        entry(verdict=divergence("gradient"), cause=LATE.slug),
        "import torch\n",
    )
    save_shrunk(
        tmp_path / "second",
        entry(verdict=divergence("output"), cause=LATE.slug),
        f"{NO_SCRIPT}: why\n",
    )
    save_shrunk(tmp_path / "third", entry(verdict=divergence("loss")), "import torch\n")
    return tmp_path


def rows(*arguments: object, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit) as caught:
        cli.main(["corpus", *map(str, arguments)])
    assert caught.value.code == 0
    return capsys.readouterr().out.splitlines()


def test_a_cause_is_one_line_for_all_its_entries(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, late, unknown, count = rows("causes", corpus, capsys=capsys)
    assert head.split() == ["severity", "component", "weight", "entries", "issue", "cause"]
    assert late.split() == ["silent", "fully_shard", "bug", "2", "183702", LATE.slug]
    assert unknown.split() == ["silent", "1", "not", "known:", "third"]
    assert count == "2 causes of 3 entries: 1 bug, 1 not known"


def top(corpus: Path, capsys: pytest.CaptureFixture[str], *causes: str) -> list[str]:
    """The causes that ``report --top`` prints of entries with these, one each."""
    for number, cause in enumerate(causes):
        made = entry(verdict=divergence("gradient"), cause=cause)
        save_shrunk(corpus / f"entry{number}", made, "import torch\n")
    assert fuzzshard("report", corpus, "--top", 9) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["severity", "weight", "seen", "fix", "cause", "entry"]
    return [line.split()[-2] for line in lines]


def test_what_to_file_first_is_in_setups_that_people_have_with_a_small_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exotic = "evaluations_divide_gradients"
    long_fix, short_fix = "late_receives_keep_their_order", "list_group_casts_root_output"
    seen_elsewhere = "evaluations_clear_gradients"
    limitation = "graph_makes_missing_gradients_zeros"
    causes = (exotic, LATE.slug, long_fix, limitation, short_fix, seen_elsewhere)
    assert LATE.filed
    assert top(tmp_path, capsys, *causes) == [seen_elsewhere, short_fix, long_fix, exotic]


def test_where_torch_has_an_issue_of_each_cause_nothing_is_to_be_filed(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzzshard("report", corpus, "--top", 3) == 0
    assert capsys.readouterr().out.startswith("nothing to file: torch has an issue")


def test_causes_count_the_entries_that_filters_leave(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rows("causes", corpus, "--cause", "LIST_*", capsys=capsys)[1:] == [
        f"silent    fully_shard  bug     2        183702  {LATE.slug}",
        "1 cause of 2 entries: 1 bug",
    ]
    assert rows("causes", corpus, "--severity", "hang", capsys=capsys) == ["no findings"]


def test_releases_count_the_entries_of_a_cause_that_are_bad_and_good(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = read_entry(corpus / "second" / "case.json")
    seen = replace(seen, bad_on=("2.12.0",), good_on=("2.13.0", "2.14.1"))
    write_atomic(corpus / "second" / "case.json", encode_entry(seen))
    head, late, unknown, _ = rows("causes", corpus, "--torch", "2.14.1,2.13.0", capsys=capsys)
    assert head.split()[:5] == ["severity", "component", "weight", "2.13.0", "2.14.1"]
    assert late.split()[3:5] == ["1/2", "0/1"]
    assert unknown.split()[1:3] == ["1/1", "n/a"]
    found = json.loads(rows("causes", corpus, "--json", capsys=capsys)[0])
    assert found["releases"] == {"2.12.0": [1, 0], "2.13.0": [1, 1], "2.14.1": [0, 1]}


def test_a_release_that_no_entry_was_run_under_is_an_error(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (known,) = read_entry(corpus / "first" / "case.json").bad_on
    assert fuzzshard("corpus", "causes", corpus, "--torch", "2.7") == 2
    assert f"no entry was run under torch 2.7.0; choose of {known}" in capsys.readouterr().err


def test_the_page_keeps_what_people_wrote_above_its_tables(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = corpus / "README.md"
    page.write_text("# Mine\n\n")
    for _ in range(2):
        main(corpus)
        assert capsys.readouterr().out == f"{page}: 2 causes\n"
    text = page.read_text()
    assert text.startswith(
        f"# Mine\n\n<!-- What follows is written by: python benchmarks/findings_page.py {corpus}"
    )
    assert text.count("## 2 causes of 3 entries: 1 bug, 1 not known\n") == 1
    assert (
        f"| silent | fully_shard | bug | [{LATE.title}](first) | {LATE.torch.text()} | 2 "
        f"| [pytorch 183702](https://github.com/pytorch/pytorch/issues/183702) | `{LATE.slug}` |"
    ) in text
    assert f"| {LATE.title} | 2 | 2 bad |" in text
    assert "| all | 3 | 3 bad |" in text


def test_causes_as_json_name_their_entries(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late, unknown = map(json.loads, rows("causes", corpus, "--json", capsys=capsys))
    assert (late["name"], late["entries"], late["verified"]) == (LATE.slug, ["first", "second"], 1)
    assert unknown["entries"] == ["third"]


def test_a_script_that_did_not_show_the_finding_is_not_verified(corpus: Path) -> None:
    note = {"repro.py": "running it did not show the finding"}
    noted = entry(verdict=divergence("gradient"), cause=LATE.slug, notes=note)
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
    made_up = entry(verdict=divergence("gradient"), cause="nowhere")
    write_atomic(corpus / "first" / "case.json", encode_entry(made_up))
    names = [cause.name for cause in by_cause(load([corpus])[0])]
    assert names == [LATE.slug, "not known: first", "not known: third"]


@pytest.mark.parametrize("corpus", CORPORA, ids=str)
def test_every_finding_of_our_own_has_a_cause(corpus: Path) -> None:
    causes = by_cause(load([ROOT / corpus])[0])
    assert [cause.name for cause in causes if cause.name not in own_mends()] == []


@pytest.mark.parametrize("corpus", CORPORA, ids=str)
def test_the_page_of_our_own_findings_is_up_to_date(corpus: Path) -> None:
    """``python benchmarks/findings_page.py corpus/findings`` writes it anew."""
    page = (ROOT / corpus / "README.md").read_text()
    assert findings_page(by_cause(load([ROOT / corpus])[0]), corpus, page) == page
