from __future__ import annotations

import io
import json
import re
import time

import msgspec
import pytest
from fake_campaign import PASS, campaign, divergence, make_case, numbered

from fuzzshard.events import SCHEMA, AnyEvent
from fuzzshard.report.lines import event_lines, folded
from fuzzshard.report.panel import CampaignPanel
from fuzzshard.report.sinks import make_sink
from fuzzshard.report.stages import CampaignProgress


def finding_in_case_2(case):
    return divergence() if case.seed == 2 else PASS


def plain(tmp_path, verdict_of=finding_in_case_2, **options) -> str:
    stream = io.StringIO()
    with make_sink(json=False, stream=stream) as sink:
        campaign(tmp_path, verdict_of, sink=sink, **options)
    return stream.getvalue()


def test_json_is_one_object_a_line_with_the_seed_first(tmp_path):
    stream = io.StringIO()
    with make_sink(json=True, stream=stream) as sink:
        campaign(tmp_path, finding_in_case_2, sink=sink, max_cases=4, seed=7)
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert events[0]["event"] == "campaign_started"
    assert events[0]["seed"] == 7
    assert events[-1]["event"] == "campaign_finished"
    kinds = {event["event"] for event in events}
    assert {"case_started", "finding_saved"} <= kinds
    assert "case_detail" not in kinds  # that is for the journal


def test_every_json_event_has_the_wall_clock_and_the_first_one_the_version_of_the_events(tmp_path):
    stream, began = io.StringIO(), time.time()
    with make_sink(json=True, stream=stream) as sink:
        campaign(tmp_path, finding_in_case_2, sink=sink, max_cases=4)
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert events[0]["schema"] == SCHEMA
    times = [began, *(event["time"] for event in events), time.time()]
    assert times == sorted(times)


def test_json_reads_back_as_the_events_that_were_written(tmp_path):
    stream = io.StringIO()
    with make_sink(json=True, stream=stream) as sink:
        ran = campaign(tmp_path, finding_in_case_2, sink=sink, max_cases=4)
    assert [
        msgspec.json.decode(line, type=AnyEvent) for line in stream.getvalue().splitlines()
    ] == ran.events


def test_the_seed_is_the_first_plain_line(tmp_path):
    assert plain(tmp_path, max_cases=1, seed=0).splitlines()[0] == "seed 0"


def test_plain_lines_tell_how_to_replay_a_finding(tmp_path):
    text = plain(tmp_path, max_cases=4)
    assert re.search(r"FOUND divergence/fully_shard/gradient in case 2", text)
    assert re.search(rf"replay: fuzzshard replay {tmp_path}", text)
    assert re.search(r"finding divergence/fully_shard/gradient, once", text)


def test_plain_lines_do_not_say_every_case(tmp_path):
    assert len(plain(tmp_path, lambda case: PASS, max_cases=300).splitlines()) < 30


def test_plain_lines_and_the_panel_name_a_flaky_finding_with_its_rate(tmp_path):
    runs: list[int] = []

    def every_second_time(case):
        runs.append(case.seed)
        return divergence() if case.seed == 2 and runs.count(2) % 2 else PASS

    progress = CampaignProgress()
    ran = campaign(tmp_path / "a", every_second_time, sink=progress.update, max_cases=4)
    text = "\n".join(line for event in ran.events for line in event_lines(event))
    assert "confirmed: flaky, 5 of 10 runs (PASS in 5)" in text
    assert (
        "finding divergence/fully_shard/gradient (flaky, 5 of 10 runs (PASS in 5)), once" in text
    )
    assert progress.last_finding.startswith(
        "divergence/fully_shard/gradient (flaky, 5 of 10 runs)"
    )


def test_plain_lines_tell_of_findings_that_the_corpus_had(tmp_path):
    assert "finding divergence/fully_shard/gradient, once" in plain(tmp_path, max_cases=4, seed=0)
    text = plain(tmp_path, max_cases=4, fresh=True)
    assert "the corpus has findings already: 1 that are counted" in text
    assert "known finding divergence/fully_shard/gradient, once" in text


@pytest.mark.parametrize(
    ("mends", "said"),
    [("both", "three of four cases"), ("on", "one that fails"), ("off", "count as findings")],
)
def test_plain_lines_say_on_which_torch_cases_run(tmp_path, mends, said):
    assert said in plain(tmp_path, lambda case: PASS, mends=mends, max_cases=1)


def test_a_case_that_could_not_be_saved_is_printed_whole(tmp_path):
    (tmp_path / "findings").write_text("in the way")
    text = plain(tmp_path, cases=numbered(lambda i: make_case(2)))
    assert "NOT SAVED" in text
    assert '"seed":2' in text


def test_a_terminal_gets_a_panel_and_the_summary_stays_when_it_is_gone(tmp_path):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with make_sink(json=False, stream=stream) as sink:
        campaign(tmp_path, finding_in_case_2, sink=sink, max_cases=4, seed=7)
    text = stream.getvalue()
    assert "fuzzshard, seed 7" in text
    *_, page, reason = text.splitlines()
    assert "finding divergence/fully_shard/gradient, once" in text
    assert page == f"page: {tmp_path / 'report.html'}"
    assert "all cases were run; exit code 1, seed 7" in reason


def test_the_panel_shows_seed_counts_phase_coverage_and_the_last_finding(tmp_path):
    from rich.console import Console

    progress = CampaignProgress()
    ran = campaign(tmp_path, finding_in_case_2, sink=progress.update, max_cases=4, seed=7)
    console = Console(file=io.StringIO(), width=200)
    console.print(CampaignPanel(progress))
    text = console.file.getvalue()
    for expected in ("seed 7", "4 of 4", "PASS 3, DIVERGENCE 1", "world 0", "1 distinct"):
        assert expected in text
    assert f"{ran.finished.features_seen} of {ran.finished.features_total} features" in text


def test_the_panel_shows_what_cases_are_asked_to_be(tmp_path):
    from rich.console import Console

    progress = CampaignProgress()
    campaign(tmp_path, finding_in_case_2, sink=progress.update, max_cases=1)
    asked = "--require mesh:hsdp; 3 of 100 cases drawn at random are like that"
    progress.started = msgspec.structs.replace(progress.started, steering=asked)
    console = Console(file=io.StringIO(), width=200)
    console.print(CampaignPanel(progress))
    assert asked in console.file.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("  one two three four", "  one two\n    three four"),
        ("page: first/report.html", "page: first/report.html"),
        ("next: fuzzshard run --seed 1", "next: fuzzshard run --seed 1"),
    ],
)
def test_lines_break_between_words_and_what_people_copy_does_not(text: str, shown: str) -> None:
    assert folded(text, 14) == shown
