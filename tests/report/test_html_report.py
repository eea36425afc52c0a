from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from command_line import fuzzshard
from msgspec.structs import replace
from recorded import LIST_GROUP, RESHARD, finished, judged, one_finding, record

from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import Culprit
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.events import FindingHit
from fuzzshard.mending.mend import own_mends
from fuzzshard.report.html.page import page
from fuzzshard.report.node import read_node
from fuzzshard.report.show import drawn as as_shown
from fuzzshard.verdict import Status

VOID = {"meta", "link", "br", "hr", "img", "input"}
REFERENCES = ("src", "href", "srcset", "action", "data", "poster", "xlink:href")


class Page(HTMLParser):
    """Checks that elements nest, and keeps what tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self.open), data))

    def text(self, *inside: str) -> str:
        return " ".join(data for path, data in self.texts if set(inside) <= set(path))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def classes(self) -> list[str]:
        return [
            name for _, attributes in self.tags for name in (attributes.get("class") or "").split()
        ]


def page_of(*directories: Path) -> Page:
    return Page(page([read_node(directory) for directory in directories]))


def test_the_page_asks_for_nothing_outside_itself(node1: Path, node2: Path) -> None:
    text = page([read_node(node1), read_node(node2)])
    for tag, attributes in Page(text).tags:
        for name in REFERENCES:
            if (value := attributes.get(name)) is not None and (tag, name) != ("a", "href"):
                assert value.startswith(("#", "data:")), f"<{tag} {name}={value}>"
    assert not re.search(r"url\(|@import|@font-face", text)


def test_the_figures_are_those_of_the_journal(node1: Path) -> None:
    drawn = page_of(node1)
    assert drawn.text("h1") == "2 distinct findings in 6 cases"
    text = re.sub(r"\s+", " ", drawn.text("dl"))
    for figure in (
        "cases 6 in 0:10",
        "cases per second 0.60",
        "hangs 1",
        "crashes 1",
    ):
        assert figure in text
    assert "DIVERGENCE 2 33.3 %" in re.sub(r"\s+", " ", drawn.text("section", "ul"))


def test_several_directories_are_added_and_each_has_its_line(node1: Path, node2: Path) -> None:
    drawn = page_of(node1, node2)
    assert drawn.text("h1") == "2 distinct findings in 8 cases"
    assert str(node1) in drawn.text("table", "code")
    assert str(node2) in drawn.text("table", "code")


def test_a_finding_has_a_card_with_its_script_its_case_and_what_was_seen(node1: Path) -> None:
    drawn = page_of(node1)
    cards = [attributes for attributes in drawn.all("article") if attributes.get("id")]
    assert [card["id"] for card in cards] == [f"finding-{RESHARD}", f"finding-{LIST_GROUP}"]
    script = (node1 / "findings" / RESHARD / "repro.py").read_text()
    listings = "".join(data for path, data in drawn.texts if "pre" in path)
    assert listings.count(script) == 1
    assert "0 at [0, 1] of [1, 4]" in drawn.text("article", "table")
    file = node1 / "findings" / RESHARD / "case.json"
    assert listings.count(as_shown(read_entry(file), file.parent)) == 1


def test_a_flaky_finding_keeps_its_rate(node1: Path) -> None:
    drawn = page_of(node1)
    assert "4 of 10" in drawn.text("table")
    assert "flaky, 4 of 10 runs (PASS in 6)" in drawn.text("article", "dl")
    assert drawn.classes().count("flaky") == 2


def test_every_row_of_a_finding_leads_to_its_card(node1: Path) -> None:
    drawn = page_of(node1)
    ids = {attributes.get("id") for _, attributes in drawn.tags}
    links = [href for a in drawn.all("a") if (href := a["href"] or "").startswith("#")]
    assert len(links) == 2
    assert {link.removeprefix("#") for link in links} <= ids


def test_headings_leave_out_no_level(node1: Path) -> None:
    levels = [int(tag[1]) for tag, _ in page_of(node1).tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(level - before <= 1 for before, level in itertools.pairwise(levels))


HOSTILE = (
    "</code></pre><script>alert(1)</script><img src=x onerror=alert(1)> {{ 70007 * 3 }} & \"'"
)


def test_what_a_finding_says_is_text_and_never_markup(tmp_path: Path) -> None:
    events = one_finding(tmp_path, RESHARD, "divergence/fully_shard/registered_parameter", at=1.0)
    file = tmp_path / "findings" / RESHARD / "case.json"
    entry = read_entry(file)
    finding = replace(entry.findings[0], observed=HOSTILE, expected=HOSTILE)
    hostile = replace(
        entry,
        findings=(finding,),
        culprits=(Culprit(change=HOSTILE, outcome=HOSTILE),),
        notes={"ddp": HOSTILE},
        preload=(HOSTILE,),
        stacks={HOSTILE: HOSTILE},
    )
    file.write_bytes(encode_entry(hostile))
    file.with_name("repro.py").write_text(f"{HOSTILE}\n# {HOSTILE}\nx = '''{HOSTILE}'''\n")
    end = finished(3.0, reason=HOSTILE, exit_code=1)
    record(tmp_path, [*judged(Status.DIVERGENCE, at=0.0), *events, end])
    drawn = page_of(tmp_path)
    assert len(drawn.all("script")) == 1
    assert drawn.all("img") == []
    assert "210021" not in drawn.text("article")
    assert HOSTILE in drawn.text("article", "td")
    assert not any(name.startswith("on") for _, attributes in drawn.tags for name in attributes)


def test_a_finding_whose_entry_was_moved_away_keeps_a_card(tmp_path: Path) -> None:
    events = one_finding(tmp_path, RESHARD, "divergence/fully_shard/registered_parameter", at=1.0)
    (tmp_path / "findings" / RESHARD / "case.json").unlink()
    record(tmp_path, [*judged(Status.DIVERGENCE, at=0.0), *events, finished(3.0, exit_code=1)])
    assert "Its entry is not in this directory" in page_of(tmp_path).text("article")


def test_the_cards_of_findings_that_the_corpus_had_are_folded(tmp_path: Path) -> None:
    found = one_finding(tmp_path, RESHARD, "divergence/fully_shard/registered_parameter", at=1.0)
    one_finding(
        tmp_path, LIST_GROUP, "crash/fully_shard/RuntimeError in _engine_run_backward", at=2.0
    )
    path = str(tmp_path / "findings" / LIST_GROUP)
    hit = FindingHit(index=1, signature="crash", path=path, hits=1, elapsed=2.0)
    cases = [*judged(Status.DIVERGENCE, at=0.0), *found, *judged(Status.CRASH, at=1.5), hit]
    record(tmp_path, [*cases, finished(3.0, exit_code=1)])
    drawn = page_of(tmp_path)
    assert len(drawn.all("article")) == 2
    assert "_engine_run_backward" in drawn.text("details", "article")
    assert "registered_parameter" not in drawn.text("details", "header")
    assert "1 new" in drawn.text("dd")


def test_a_campaign_that_finds_nothing_new_says_so(tmp_path: Path) -> None:
    one_finding(tmp_path, RESHARD, "divergence/fully_shard/registered_parameter", at=1.0)
    path = str(tmp_path / "findings" / RESHARD)
    hit = FindingHit(index=0, signature="divergence", path=path, hits=1, elapsed=2.0)
    record(tmp_path, [*judged(Status.DIVERGENCE, at=0.0), hit, finished(3.0)])
    drawn = page_of(tmp_path)
    assert drawn.text("h1") == "0 new findings in 1 case, and 1 known before"
    assert "0 new" in drawn.text("dd")


def test_a_corpus_without_a_journal_is_a_page_of_its_findings(tmp_path: Path) -> None:
    for name in (RESHARD, LIST_GROUP):
        one_finding(tmp_path, name, "", at=0.0, known=True)
    drawn = page_of(tmp_path)
    assert drawn.text("h1") == "2 findings of 2 causes"
    assert re.sub(r"\s+", " ", drawn.text("dl", "div")).startswith("silent 1 crash 1 open 2 ")
    assert len(drawn.all("article")) == 2
    assert drawn.text("h2") == "Figures Findings"


def test_a_cause_is_one_row_with_its_releases_and_one_of_its_findings_has_its_case(
    tmp_path: Path,
) -> None:
    for name in (RESHARD, LIST_GROUP):
        one_finding(tmp_path, name, "", at=0.0, known=True)
    file = tmp_path / "findings" / LIST_GROUP / "case.json"
    cause = read_entry(file.parents[1] / RESHARD / "case.json").cause
    fixed = replace(read_entry(file), cause=cause, lifecycle=Lifecycle.FIXED, bad_on=("2.9.0",))
    file.write_bytes(encode_entry(fixed))
    drawn = page_of(tmp_path)
    title = own_mends()[cause].title
    assert drawn.text("h1") == "2 findings of 1 cause"
    assert sum(title in text for path, text in drawn.texts if "td" in path) == 1
    assert sum(title in text for path, text in drawn.texts if "summary" in path) == 1
    (row,) = (row for row in drawn.all("tr") if "data-status" in row)
    assert sorted((row["data-status"] or "").split()) == ["fixed", "open"]
    assert "2.9.0, 2.1" in drawn.text("table", "td")
    assert "known" in drawn.text("table", "span")
    assert "2 findings" in drawn.text("table", "td")
    assert len(drawn.all("article")) == 1
    assert drawn.text("article", "summary").count("The case as text") == 1
    assert LIST_GROUP in drawn.text("article", "li", "code")


def test_findings_of_a_campaign_without_any_other_case_are_in_the_headline(tmp_path: Path) -> None:
    found = one_finding(tmp_path, RESHARD, "divergence", at=1.0)
    record(tmp_path, [*found, finished(3.0, exit_code=1)])
    assert page_of(tmp_path).text("h1") == "1 finding, and no other case has been judged"


def test_a_finding_with_a_recorded_cause_is_known(tmp_path: Path) -> None:
    found = one_finding(tmp_path, RESHARD, "divergence", at=1.0, known=True)
    record(tmp_path, [*judged(Status.DIVERGENCE, at=0.0), *found, finished(3.0)])
    assert page_of(tmp_path).text("h1") == "0 new findings in 1 case, and 1 known before"


def test_the_page_of_one_directory_is_written_into_it_and_counts_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (RESHARD, LIST_GROUP):
        one_finding(tmp_path, name, "", at=0.0, known=True)
    assert fuzzshard("html", tmp_path) == 0
    (tmp_path / "findings" / LIST_GROUP / "case.json").write_text("{}")
    assert fuzzshard("html", tmp_path) == 2
    assert "INVALID" in capsys.readouterr().out
    drawn = Page((tmp_path / "report.html").read_text())
    assert "entries that cannot be read" in drawn.text("dt")
    assert drawn.text("h1") == "1 finding of 1 cause"


def test_findings_can_be_filtered_by_what_they_differ_in(tmp_path: Path) -> None:
    for name in (RESHARD, LIST_GROUP):
        one_finding(tmp_path, name, "", at=0.0, known=True)
    drawn = page_of(tmp_path)
    assert [field["name"] for field in drawn.all("select")] == ["severity", "cause"]
    values = [option["value"] for option in drawn.all("option")]
    assert values[:3] == ["*", "silent", "crash"]
    rows = [row["data-severity"] for row in drawn.all("tr") if "data-severity" in row]
    assert rows == ["silent", "crash"]


def test_a_finding_links_to_the_issues_of_its_cause(tmp_path: Path) -> None:
    folder = tmp_path / "findings" / RESHARD
    one_finding(tmp_path, RESHARD, "", at=0.0)
    entry = read_entry(folder / "case.json")
    link = "https://github.com/pytorch/pytorch/issues/183702"
    late = replace(entry, cause="list_group_unshards_late", issue=link)
    (folder / "case.json").write_bytes(encode_entry(late))
    drawn = page_of(tmp_path)
    links = [a for a in drawn.all("a") if not (a["href"] or "").startswith("#")]
    assert [a["href"] for a in links] == [link] * 2  # in the table, and on the card
    assert "pytorch 183702" in drawn.text("table", "a")


def test_only_the_page_of_a_campaign_that_runs_is_asked_for_again(tmp_path: Path) -> None:
    record(tmp_path / "running", judged(at=0.0))
    record(tmp_path / "ended", [*judged(at=0.0), finished(1.0)])
    again = {name: page_of(tmp_path / name).all("body")[0] for name in ("running", "ended")}
    assert again == {"running": {"data-refresh": "30"}, "ended": {}}


@pytest.mark.parametrize("ended", [True, False])
def test_a_campaign_without_a_case_has_a_page(tmp_path: Path, ended: bool) -> None:
    record(tmp_path, [finished(0.0, reason="no rank starts", exit_code=4)] if ended else [])
    drawn = page_of(tmp_path)
    assert drawn.text("h1") == "No case has been judged"


def test_a_case_that_is_in_flight_counts_for_nothing(tmp_path: Path) -> None:
    record(tmp_path, [*judged(at=0.0), judged(at=1.0)[0]])
    assert page_of(tmp_path).text("h1") == "No findings in 1 case"
