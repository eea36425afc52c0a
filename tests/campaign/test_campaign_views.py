"""What a campaign leaves for people and machines to look at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_campaign import PASS, campaign, divergence

from fuzzshard.case.case import Case
from fuzzshard.corpus.store import entry_files
from fuzzshard.events import CaseJudged, Event
from fuzzshard.report.html.page import report_writer
from fuzzshard.report.sinks import tee
from fuzzshard.report.stats import stats_writer
from fuzzshard.verdict import Verdict


def wrong(number: int) -> Callable[[Case], Verdict]:
    return lambda case: divergence() if case.seed == number else PASS


def test_the_figures_at_the_end_are_those_of_the_summary(tmp_path: Path) -> None:
    ran = campaign(tmp_path, wrong(3), sink=stats_writer(tmp_path), max_cases=8)
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["cases"] == ran.finished.cases == 8
    assert stats["verdicts"] == ran.finished.counts
    assert (stats["findings"], stats["hits"]) == (1, 1)
    assert (stats["state"], stats["reason"], stats["exit_code"]) == (
        "ended",
        ran.finished.reason,
        1,
    )
    assert stats["features_seen"] == ran.finished.features_seen > 0


def test_figures_are_written_anew_every_ten_seconds(tmp_path: Path) -> None:
    now = 0.0
    cases: list[int] = []
    write = stats_writer(tmp_path, clock=lambda: now)

    def sink(event: Event) -> None:
        nonlocal now
        if isinstance(event, CaseJudged):
            now += 4.0
        write(event)
        if isinstance(event, CaseJudged):
            cases.append(json.loads((tmp_path / "stats.json").read_text())["cases"])

    campaign(tmp_path, lambda case: PASS, sink=sink, max_cases=7)
    assert cases == [0, 0, 3, 3, 3, 6, 6]


def test_figures_that_cannot_be_written_are_said_once_and_end_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stats.json").mkdir()
    ran = campaign(tmp_path, lambda case: PASS, sink=stats_writer(tmp_path), max_cases=3)
    assert ran.code == 0
    assert capsys.readouterr().err.count("stats.json is not written any more") == 1


def test_figures_are_no_entry_of_the_corpus(tmp_path: Path) -> None:
    campaign(tmp_path, wrong(1), sink=stats_writer(tmp_path), max_cases=3)
    assert (tmp_path / "stats.json").is_file()
    (entry,) = entry_files([tmp_path])
    assert entry.name == "case.json"


def test_a_campaign_that_ends_leaves_a_report_with_its_finding(tmp_path: Path) -> None:
    campaign(
        tmp_path, wrong(3), sink=tee(stats_writer(tmp_path), report_writer(tmp_path)), max_cases=8
    )
    page = (tmp_path / "report.html").read_text()
    assert "<h1>1 distinct finding in 8 cases</h1>" in page
    assert "divergence/fully_shard/gradient" in page


def test_a_report_that_cannot_be_written_changes_no_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.html").mkdir()
    assert (
        campaign(tmp_path, lambda case: PASS, sink=report_writer(tmp_path), max_cases=3).code == 0
    )
    assert "report.html is not written" in capsys.readouterr().err
