"""What a campaign says of itself while it works on a finding."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from fuzzshard.events import (
    CampaignFinished,
    CampaignStarted,
    Continued,
    CorpusLoaded,
    FindingFound,
    FindingSaved,
    Finishing,
    KnownFinding,
    PhaseChanged,
    ShrinkProgress,
)
from fuzzshard.report.lines import event_lines, progress_line
from fuzzshard.report.panel import ROOM_FOR_ECHO, CampaignPanel
from fuzzshard.report.stages import CampaignProgress, Stages
from fuzzshard.verdict import Status

SIGNATURE = "crash/fully_shard/RuntimeError in foreach_reduce_scatter_copy_in"
PATH = "corpus/findings/crash-fully_shard-RuntimeError-in-foreach_reduce_scatter_copy_in-2a8345a7"
FOUND = FindingFound(
    index=8, status=Status.CRASH, signature=SIGNATURE, summary="no such\nkey, " * 60, path=PATH
)
CONFIRMING = PhaseChanged(phase="confirming", signature=SIGNATURE, of=3)
SHRINKING = PhaseChanged(phase="shrinking", signature=SIGNATURE)
VERIFYING = PhaseChanged(phase="verifying", signature=SIGNATURE)


def started(**options: Any) -> CampaignStarted:
    return CampaignStarted(
        version="1",
        seed=7,
        corpus="corpus",
        world_size=2,
        worlds=1,
        device="cpu",
        engines=("ddp",),
        **options,
    )


def finished(**options: Any) -> CampaignFinished:
    facts: dict[str, Any] = {
        "reason": "time is up",
        "exit_code": 0,
        "seed": 7,
        "corpus": "corpus",
        "torch": "2.15.0",
        "mends": "both",
        "cases": 1,
        "cases_per_second": 1.0,
        "counts": {"PASS": 1},
        "findings": (),
        "unresolved": (),
        "features_seen": 1,
        "features_total": 2,
        "features_unseen": ("dtype:bfloat16",),
    }
    return CampaignFinished(**(facts | options))


def saved(**options: Any) -> FindingSaved:
    return FindingSaved(
        signature=SIGNATURE,
        path=PATH,
        replay_command="fuzzshard replay",
        script="repro.py",
        script_fails=True,
        leaves_before=8,
        leaves_after=1,
        runs=3,
        reproduced=3,
        shrink_evaluations=31,
        shrink_finished=True,
        **options,
    )


def panel(*events: Any, width: int = 80) -> str:
    progress = CampaignProgress()
    for event in events:
        progress.update(event)
    console = Console(file=io.StringIO(), width=width)
    console.print(CampaignPanel(progress))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(text: str, name: str) -> str:
    (line,) = (line for line in text.splitlines() if line.startswith(f"│ {name} "))
    return line.strip("│ ").removeprefix(name).strip()


def test_a_finding_is_in_work_on_the_panel_until_it_is_saved() -> None:
    events = (started(), PhaseChanged(phase="running"))
    assert row(panel(*events), "findings") == "none yet"
    events += (FOUND, CONFIRMING)
    assert row(panel(*events), "findings") == "1 in work"
    events += (saved(), PhaseChanged(phase="running"))
    assert row(panel(*events), "findings") == "1 distinct"


def test_a_campaign_that_goes_on_shows_the_findings_it_had() -> None:
    before = Continued(
        sessions=1, ended="killed", cases=1, elapsed=9, counts={}, findings=2, unfinished=0
    )
    text = panel(started(continues=before))
    assert row(text, "findings") == "2 distinct"
    assert row(text, "before") == "1 case in 0:09 (killed)"


def test_the_panel_says_what_the_corpus_has_and_where_the_page_will_be() -> None:
    text = panel(started(), CorpusLoaded(known=0, explained=281), width=120)
    assert row(text, "corpus") == "281 of known bugs of torch"
    assert row(text, "page") == "corpus/report.html"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_each_thing_has_one_line_of_the_panel_and_ctrl_c_has_room_beside_it(width: int) -> None:
    finishing = Finishing(reason="time is up", doing=(SHRINKING.text,))
    lines = panel(started(), FOUND, SHRINKING, finishing, width=width).splitlines()
    assert {len(line) for line in lines} == {width - ROOM_FOR_ECHO}
    assert len(lines) == len(panel(started(), FOUND, SHRINKING, finishing, width=300).splitlines())


def test_stages_say_how_far_they_are_and_how_long_they_may_take() -> None:
    now = 0.0
    stages = Stages(lambda: now)
    texts = []

    def after(seconds: float, event: Any) -> None:
        nonlocal now
        now = seconds
        stages.update(event)
        texts.append(stages.texts()[0])

    after(5, PhaseChanged(phase="explaining", signature=SIGNATURE))
    after(8, PhaseChanged(phase="explaining", signature=SIGNATURE, done=1))
    after(10, CONFIRMING)
    after(14, PhaseChanged(phase="confirming", signature=SIGNATURE, done=2, of=3))
    after(20, SHRINKING)
    progress = ShrinkProgress(
        signature=SIGNATURE, evaluations=10, leaves=1, max_evaluations=300, max_seconds=180
    )
    after(30, progress)
    after(40, VERIFYING)
    after(45, PhaseChanged(phase="running"))
    after(60, VERIFYING)
    assert texts == [
        "explaining 0:00, run 1",
        "explaining 0:03, run 2",
        "confirming 0:00, run 1 of 3",
        "confirming 0:04, run 3 of 3, about 0:02 more",
        "shrinking 0:00",
        "shrinking 0:10, 1 leaf module after 10 runs, at most 2:50 more",
        "checking the script 0:00",
        "running cases",
        "checking the script 0:00, about 0:05 more",
    ]


def test_a_progress_line_says_what_is_done_with_a_finding() -> None:
    progress = CampaignProgress()
    for event in (started(), FOUND, CONFIRMING):
        progress.update(event)
    assert progress_line(progress).endswith(", 0 findings, 1 in work; confirming 0:00, run 1 of 3")


def test_what_torch_said_of_a_finding_is_cut_to_the_terminal() -> None:
    head, said, path = event_lines(FOUND, 80)
    assert len(said) <= 80
    assert said.startswith("    no such key, no such key")
    assert head.startswith("[0:00] FOUND crash/fully_shard")
    assert path.endswith(PATH)


def test_a_summary_begins_with_findings_and_what_to_do_next_and_ends_with_why_it_ended() -> None:
    event = finished(
        findings=(KnownFinding(signature=SIGNATURE, path=PATH, hits=1),),
        exit_code=1,
    )
    assert list(event_lines(event)) == [
        "",
        f"finding {SIGNATURE}, once",
        f"    {PATH}",
        f"next: fuzzshard show {PATH}",
        f"      fuzzshard report {PATH}",
        "1 case in 0:00, 1.00 per second (PASS 1)",
        "coverage: 1 of 2 features; not seen: dtype:bfloat16",
        "page: corpus/report.html",
        "time is up; exit code 1, seed 7; the same command goes on with it",
    ]


def test_a_campaign_without_a_case_says_that_nothing_was_tested() -> None:
    lines = list(event_lines(finished(cases=0, counts={}, exit_code=3, elapsed=62.0)))
    assert lines[:2] == ["", "nothing was tested: no case came to its end in 1:02"]


def test_a_campaign_without_findings_says_how_to_see_one() -> None:
    hint = "fuzzshard run --mends off --max-findings 1"
    assert hint in "\n".join(event_lines(finished()))
    assert hint not in "\n".join(event_lines(finished(mends="off")))
    assert hint not in "\n".join(event_lines(finished(unresolved=(PATH,))))
