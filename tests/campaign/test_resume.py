"""Campaigns that are killed, interrupted or stopped by their machine, and go on with the same
command.
"""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from case_runs import case_runs
from fake_campaign import (
    INFRA,
    PASS,
    FakeScriptResult,
    FakeWorld,
    Ran,
    campaign,
    divergence,
    make_case,
    numbered,
    shrink_seed_and_norm,
    without_followers,
)
from msgspec.structs import replace

from fuzzshard import events
from fuzzshard.analysis.order import size_order
from fuzzshard.analysis.steering import Steering
from fuzzshard.campaign.backlog import FULL
from fuzzshard.campaign.finding_store import FindingStore
from fuzzshard.campaign.known import Found
from fuzzshard.campaign.resume import Plan, in_work, session_seed, unfinished
from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.store import entry_files, save_shrunk
from fuzzshard.errors import UsageError
from fuzzshard.journal.history import History
from fuzzshard.journal.schema import JOURNAL_FILE
from fuzzshard.report.lines import corpus_text, event_lines
from fuzzshard.report.stages import CampaignProgress
from fuzzshard.shrink import ShrinkStep
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world.device import cpu_ranks
from fuzzshard.world.placement import available_cores

MAX_CASES = 12


def by_seed(seed: int, /, **_: object) -> Iterator[Case]:
    """A stream of its own for every seed, without a case of another one; every fourth case has a
    norm, and so another cause.
    """
    return (
        make_case(100 + number, norm=number % 4 == 2)
        for number in itertools.count(seed % 100_000 * 100)
    )


def with_a_norm(case: Case) -> Verdict:
    return divergence() if len(case.model.children) > 1 or case.seed == 0 else PASS


def run(corpus: Path, verdict_of: Callable[[Case], Verdict] = with_a_norm, **options: Any) -> Ran:
    return campaign(corpus, verdict_of, **({"cases": by_seed, "max_cases": MAX_CASES} | options))


def killed(
    corpus: Path, at: Callable[[events.Event], bool] = lambda event: False, **options: Any
) -> None:
    """Runs a campaign in a process of its own, which is killed at the event ``at`` says, if not
    before.
    """

    def sink(event: events.Event) -> None:
        if at(event):
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(
        target=lambda: run(corpus, **({"sink": sink} | options))
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def killed_after(
    method: str, corpus: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> None:
    """Kills a campaign when a method of its FindingStore has done its work, and nobody has heard
    of that.
    """
    original = getattr(FindingStore, method)

    def then_die(*arguments: Any, **keywords: Any) -> None:
        original(*arguments, **keywords)
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(FindingStore, method, then_die)
        killed(corpus, **options)


def history(corpus: Path) -> History:
    return History(corpus / JOURNAL_FILE)


def told(corpus: Path, *kinds: str) -> list[Any]:
    """The events of the first campaign in a journal."""
    with history(corpus) as journal:
        return [each.event for each in journal.events(1, *kinds)]


def assert_whole(corpus: Path, ran: Ran) -> None:
    """Every case was judged once, and the finding was saved once."""
    assert ran.finished.cases == MAX_CASES
    with history(corpus) as journal:
        assert {session.campaign for session in journal.sessions()} == {1}
        runs = list(case_runs(journal, 1))
        assert journal.counts(1) == ran.finished.counts
    assert sum(run.status is not None for run in runs) == MAX_CASES
    assert sum(run.status is None for run in runs) <= FULL  # what was in flight, or waited
    (saved,) = told(corpus, "finding_saved")
    assert not saved.duplicate
    (file,) = entry_files([corpus / "findings"])
    assert read_entry(file).confirmed is not None
    (known,) = ran.finished.findings
    assert known.new
    assert (known.hits, ran.code) == (len(told(corpus, "finding_hit")) + 1, 1)


def nth(kind: type[events.Event], number: int) -> Callable[[events.Event], bool]:
    seen = itertools.count(1)
    return lambda event: isinstance(event, kind) and next(seen) == number


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (events.CampaignStarted, 1),
        (events.CaseJudged, 2),
        (events.CaseJudged, 3),
        (events.FindingFound, 1),
        (events.FindingConfirmed, 1),
        (events.FindingSaved, 1),
        (events.FindingHit, 1),
        (events.CaseJudged, 9),
    ],
)
def test_a_campaign_killed_at_any_event_goes_on_with_nothing_lost_and_nothing_twice(
    tmp_path, kind, number
):
    killed(tmp_path, nth(kind, number))
    assert_whole(tmp_path, run(tmp_path))


@pytest.mark.parametrize("method", ["save_found", "save_smaller", "save_judged", "verify"])
def test_a_campaign_killed_between_disk_and_journal_saves_its_finding_once(
    tmp_path, monkeypatch, method
):
    monkeypatch.setattr("fuzzshard.campaign.reduce.shrink", shrink_seed_and_norm)
    killed_after(method, tmp_path, monkeypatch)
    assert_whole(tmp_path, run(tmp_path))


def killed_while_saving(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case as found is on disk, and its entry is not."""
    with monkeypatch.context() as patched:
        without_followers(patched)
        patched.setattr(
            "fuzzshard.corpus.store.save_shrunk", lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        )
        killed(corpus)
    (folder,) = (corpus / "findings").iterdir()
    assert [file.name for file in folder.iterdir()] == ["unshrunk.json"]


def test_a_finding_of_which_half_was_saved_is_judged_again(tmp_path, monkeypatch):
    killed_while_saving(tmp_path, monkeypatch)
    assert_whole(tmp_path, run(tmp_path))


def test_half_of_an_entry_that_is_no_finding_any_more_goes(tmp_path, monkeypatch):
    killed_while_saving(tmp_path, monkeypatch)
    assert run(tmp_path, lambda case: PASS).code == 0
    assert not list((tmp_path / "findings").iterdir())


def test_a_finding_that_is_cut_off_again_and_again_is_told_once(tmp_path, monkeypatch):
    without_followers(monkeypatch)
    killed_after("save_found", tmp_path, monkeypatch)
    for _ in range(2):
        killed(tmp_path, nth(events.FindingConfirmed, 1))
    assert_whole(tmp_path, run(tmp_path))
    (found,) = told(tmp_path, "finding_found")
    assert found.index == -1


def test_findings_that_no_journal_tells_are_gone_on_with_in_an_order_of_their_own(tmp_path):
    run(tmp_path, lambda case: PASS)
    world = FakeWorld(with_a_norm, [])
    store = FindingStore(
        tmp_path, (), lambda *_, **__: [""], lambda *_, **__: FakeScriptResult(True)
    )
    saved = [
        store.save_found(Found(number, make_case(number), divergence()), world.info)
        for number in range(6)
    ]
    plan = Plan(seed=0, stream_seed=0, stream={})
    with history(tmp_path) as journal:
        plan = dataclasses.replace(plan, earlier=tuple(journal.sessions()), alike=(1,))
        left = unfinished(journal, plan, tmp_path, in_work(tmp_path))
    assert [found.path for found in left] == sorted(saved)


def a_finding_in_work(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of a finding that a campaign was shrinking when somebody stopped it."""
    cut_off_while_shrinking(corpus, monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT))
    (file,) = entry_files([corpus / "findings"])
    assert in_work(corpus) == (file.parent.name,)
    return file.parent.name


def test_a_new_journal_leaves_what_another_campaign_has_in_work(tmp_path, monkeypatch):
    name = a_finding_in_work(tmp_path, monkeypatch)
    (tmp_path / JOURNAL_FILE).unlink()
    before = only_entry(tmp_path)
    killed(tmp_path, nth(events.CaseJudged, 2), verdict_of=lambda case: PASS)
    ran = run(tmp_path, lambda case: PASS)
    assert ran.of(events.CampaignStarted)[0].continues is not None
    assert (ran.code, ran.finished.findings, ran.finished.unresolved) == (0, (), ())
    assert only_entry(tmp_path) == before
    (loaded,) = ran.of(events.CorpusLoaded)
    assert loaded.in_work == (name,)
    assert "1 that another campaign did not get done" in corpus_text(loaded)


def test_half_of_an_entry_of_another_campaign_is_left_alone(tmp_path, monkeypatch):
    without_followers(monkeypatch)
    killed_while_saving(tmp_path, monkeypatch)
    (tmp_path / JOURNAL_FILE).unlink()
    ran = run(tmp_path, lambda case: PASS)
    assert (ran.code, ran.finished.cases, len(in_work(tmp_path))) == (0, MAX_CASES, 1)


def test_a_finding_in_work_that_has_a_cause_by_now_is_left_alone(tmp_path, monkeypatch):
    name = a_finding_in_work(tmp_path, monkeypatch)
    entry = only_entry(tmp_path)
    save_shrunk(tmp_path / "findings" / name, replace(entry, cause="a_known_bug"), "")
    ran = run(tmp_path, lambda case: PASS)
    assert ran.of(events.CampaignStarted)[0].continues is not None
    assert not ran.of(events.FindingConfirmed)
    assert only_entry(tmp_path).unshrunk


def test_a_campaign_killed_again_and_again_adds_up(tmp_path):
    for number in (2, 2, 2):
        killed(tmp_path, nth(events.CaseJudged, number))
    last = run(tmp_path)
    assert_whole(tmp_path, last)
    with history(tmp_path) as journal:
        sessions = journal.sessions()
        features = journal.features(1)
    assert [session.continues for session in sessions] == [None, 1, 2, 3]
    assert [session.stream_seed for session in sessions] == [
        session_seed(sessions[0].seed, n) for n in range(4)
    ]
    assert last.finished.features_seen == len(features)


def test_what_an_earlier_session_had_shrunk_a_case_to_is_where_shrinking_goes_on(
    tmp_path, monkeypatch
):
    without_followers(monkeypatch)
    monkeypatch.setattr("fuzzshard.campaign.reduce.shrink", shrink_seed_and_norm)
    killed_after("save_smaller", tmp_path, monkeypatch)
    shrunk: list[Case] = []

    def shrink(case: Case, still_fails: object, **_: object) -> object:
        shrunk.append(case)
        return shrink_seed_and_norm(case, still_fails)

    monkeypatch.setattr("fuzzshard.campaign.reduce.shrink", shrink)
    ran = run(tmp_path)
    assert shrunk[0].seed == 0
    (saved,) = ran.of(events.FindingSaved)
    assert saved.leaves_before == 2


def shrink_until(stopped: Callable[[], None]) -> Callable[..., object]:
    """Shrinks as far as the plain case, and then runs on until it is told not to."""

    def shrink(
        case: Case, still_fails: Callable[[Case], bool], on_progress: Any, **_: object
    ) -> None:
        plain = make_case(0)
        assert still_fails(plain)
        on_progress(ShrinkStep("fake", plain, size_order(plain), 0, 0.0))
        stopped()
        while still_fails(case):
            time.sleep(0.01)

    return shrink


def cut_off_while_shrinking(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, first: Callable[[], None], **options: Any
) -> Ran:
    """A first session that is cut off while it shrinks, with ``options``."""
    with monkeypatch.context() as patched:
        without_followers(patched)
        patched.setattr("fuzzshard.campaign.reduce.shrink", shrink_until(first))
        patched.setattr("fuzzshard.campaign.control.OVERTIME_SECONDS", 0.1)
        return run(corpus, **options)


def only_entry(corpus: Path) -> CorpusEntry:
    (file,) = entry_files([corpus / "findings"])
    return read_entry(file)


def cut_off_at(number: int, how: str, corpus: Path) -> Ran:
    """A campaign that is stopped in its run of this number; the last one is that of a script."""
    turns, cut_off = itertools.count(1), threading.Event()

    def stop(wanted: Callable[[], bool]) -> None:
        if next(turns) == number:
            if how != "time":
                os.kill(os.getpid(), getattr(signal, how))
            assert cut_off.wait(10)
            while wanted():
                threading.Event().wait(0.01)

    def verdict_of(case: Case) -> Verdict:
        stop(lambda: False)
        return with_a_norm(case)

    def check(*_: object, wanted: Callable[[], bool], **__: object) -> FakeScriptResult:
        stop(wanted)
        return FakeScriptResult(True)

    def sink(event: events.Event) -> None:
        if isinstance(event, events.Finishing):
            cut_off.set()

    limits = {"max_time": 0.5} if how == "time" else {}
    ran = run(corpus, verdict_of, seed=0, max_cases=3, check=check, sink=sink, **limits)
    assert cut_off.is_set()
    return ran


def run_of_each_phase(log: list[str]) -> dict[str, int]:
    """The number of a run in each phase of the only finding of a campaign, by its log."""
    pairs = [pair for pair in itertools.pairwise(log) if pair[1].startswith("run")]
    _, *fresh = [n for n, (before, _) in enumerate(pairs, 1) if before == "restart"]
    assert len(fresh) == 6
    return {
        "judging": fresh[0] - 1,
        "confirming as found": fresh[1],
        "beginning to shrink": fresh[2] + 1,
        "shrinking": (fresh[2] + fresh[3]) // 2,
        "confirming as shrunk": fresh[4],
        "its script": len(pairs) + 1,
    }


def test_a_finding_that_is_cut_off_in_any_phase_in_any_way_comes_to_the_entry_it_would_have_had(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("fuzzshard.campaign.reduce.shrink", shrink_seed_and_norm)
    monkeypatch.setattr("fuzzshard.campaign.control.OVERTIME_SECONDS", 0.0)
    whole = run(tmp_path / "whole", seed=0, max_cases=3)
    phases = run_of_each_phase(whole.log)
    for phase, how in itertools.product(phases, ("SIGINT", "SIGTERM", "time")):
        number, cut = phases[phase], tmp_path / f"{phase}-{how}"
        grace = 0.3 if phase == "its script" else 10.0  # a script is waited for until it is over
        monkeypatch.setattr("fuzzshard.campaign.control.GRACE_SECONDS", grace)
        first = cut_off_at(number, how, cut)
        assert first.code == (1 if how == "time" else 130)
        (path,) = first.finished.unresolved
        assert path == str(next((cut / "findings").iterdir()))
        assert f"fuzzshard shrink {path}" in "\n".join(event_lines(first.finished))
        run(cut, seed=0, max_cases=3)
        goes_on, at_once = only_entry(cut), only_entry(tmp_path / "whole")
        assert replace(goes_on, replay="") == replace(at_once, replay=""), (phase, how)


def test_a_finding_for_whose_shrinking_time_was_up_is_shrunk_by_the_next_campaign(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("fuzzshard.campaign.reduce.shrink", shrink_seed_and_norm)
    first = cut_off_while_shrinking(
        tmp_path, monkeypatch, lambda: None, max_time=0.5, max_cases=None
    )
    assert (first.code, len(first.finished.unresolved)) == (1, 1)
    assert only_entry(tmp_path).unshrunk
    second = run(tmp_path, max_cases=3, fresh=True)
    assert second.of(events.FindingSaved)[0].path == first.finished.unresolved[0]
    assert not only_entry(tmp_path).unshrunk
    (known,) = second.finished.findings
    assert (second.code, known.new) == (0, False), "the first campaign has told of it"


def test_a_campaign_that_shrinks_nothing_leaves_what_was_cut_off(tmp_path, monkeypatch):
    cut_off_while_shrinking(tmp_path, monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT))
    run(tmp_path, lambda case: PASS, shrink=False, fresh=True)
    assert only_entry(tmp_path).unshrunk


def test_a_smaller_case_that_does_not_repeat_gives_way_to_the_case_as_found(tmp_path, monkeypatch):
    monkeypatch.setattr("fuzzshard.campaign.reduce.shrink", shrink_seed_and_norm)
    killed_after("save_smaller", tmp_path, monkeypatch)
    ran = run(
        tmp_path, lambda case: divergence() if len(case.model.children) > 1 and case.seed else PASS
    )
    (saved,) = ran.of(events.FindingSaved)
    assert saved.leaves_after == 2


@pytest.mark.parametrize("method", ["save_found", "save_flaky"])
def test_a_flaky_finding_is_told_once_wherever_the_kill_came(tmp_path, monkeypatch, method):
    runs: list[int] = []

    def once(case: Case) -> Verdict:
        runs.append(case.seed)
        return divergence() if case.seed == 102 and runs.count(102) == 1 else PASS

    killed_after(method, tmp_path, monkeypatch, verdict_of=once, seed=0)
    ran = run(tmp_path, lambda case: PASS, seed=0)
    assert ran.code == 3
    (flaky,) = told(tmp_path, "finding_flaky")
    assert flaky.observed == ("PASS",)
    assert ran.of(events.FindingFlaky) == [flaky]
    assert not entry_files([tmp_path / "findings"])
    assert len(entry_files([tmp_path / "inconclusive"])) == 1


def test_an_interrupted_campaign_goes_on_and_one_that_ended_by_itself_does_not(tmp_path):
    def interrupt(case: Case) -> Verdict:
        raise KeyboardInterrupt

    first = run(tmp_path, interrupt)
    assert (first.code, first.finished.complete) == (130, False)
    second = run(tmp_path)
    started = second.of(events.CampaignStarted)[0]
    assert started.seed == first.finished.seed
    assert started.continues is not None
    assert (started.continues.cases, started.continues.ended) == (0, "interrupted")
    assert second.finished.complete
    third = run(tmp_path)
    assert third.of(events.CampaignStarted)[0].continues is None
    assert third.finished.seed != first.finished.seed
    assert third.finished.cases == MAX_CASES


def test_a_campaign_that_its_machine_stopped_goes_on_with_its_counts(tmp_path):
    rejected = Verdict(status=Status.REJECTED, notes={"ddp": "no"})
    first = run(tmp_path, lambda case: INFRA if case.seed > 103 else rejected, seed=0)
    assert (first.code, first.finished.complete) == (4, False)
    progress = CampaignProgress()
    second = run(tmp_path, lambda case: PASS, seed=0, sink=progress.update)
    assert second.code == 0
    assert second.finished.counts == {"REJECTED": 4, "INFRA": 5, "PASS": 3}
    assert progress.counts == second.finished.counts
    assert second.finished.features_seen >= first.finished.features_seen
    text = "\n".join(line for event in second.events for line in event_lines(event))
    assert "goes on after 9 cases and 0:0" in text
    assert "5 cases in a row could not be judged" in text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"world_size": 3}, f"world_size was {cpu_ranks(available_cores())} and is 3"),
        ({"seed": 6}, "seed was 5 and is 6"),
        (
            {"steering": Steering(only=("engine:ddp",))},
            "engines was ddp replicate fully_shard fsdp1 zero_redundancy pipelining "
            "expert_parallel simple_fsdp context_parallel replicate_with_fsdp spmd and is ddp",
        ),
        (
            {"steering": Steering(require=("wrap:several_groups",))},
            "steering was none and is --require wrap:several_groups",
        ),
        ({"fresh": True}, "a fresh campaign was asked for"),
    ],
)
def test_other_options_are_another_campaign_and_one_line_says_so(tmp_path, change, why):
    killed(tmp_path, nth(events.CaseJudged, 2), seed=5, verdict_of=lambda case: PASS)
    ran = run(tmp_path, lambda case: PASS, **({"seed": 5} | change))
    started = ran.of(events.CampaignStarted)[0]
    assert (started.continues, ran.finished.cases) == (None, MAX_CASES)
    assert started.note == f"the campaign with seed 5 did not end and is not continued: {why}"
    assert started.note in list(event_lines(started))


def test_limits_that_change_do_not_make_it_another_campaign(tmp_path):
    killed(tmp_path, nth(events.CaseJudged, 4), seed=5, verdict_of=lambda case: PASS)
    ran = run(tmp_path, lambda case: PASS, max_cases=6, confirm=1)
    assert (ran.finished.seed, ran.finished.cases, len(ran.of(events.CaseJudged))) == (5, 6, 2)


def test_the_time_of_earlier_sessions_counts(tmp_path):
    killed(tmp_path, nth(events.CaseJudged, 4), verdict_of=lambda case: PASS, max_time=1000.0)
    with history(tmp_path) as journal:
        (session,) = journal.sessions()
    assert session.elapsed > 0
    ran = run(tmp_path, lambda case: PASS, max_time=session.elapsed / 2)
    assert ran.finished.reason == "time is up"
    assert (ran.finished.cases, ran.code) == (4, 0)
    assert ran.finished.elapsed > session.elapsed


def test_findings_of_earlier_sessions_count(tmp_path):
    killed(tmp_path, nth(events.FindingSaved, 1))
    ran = run(tmp_path, max_findings=1)
    assert ran.finished.reason == "1 distinct finding"
    assert len(ran.of(events.CaseJudged)) == 0


def test_a_campaign_in_a_folder_of_entries_is_refused_with_what_to_name(tmp_path):
    entry = tmp_path / "findings" / "crash-x-00000000"
    entry.mkdir(parents=True)
    (entry / "case.json").write_bytes(b"{}")
    with pytest.raises(
        UsageError, match=r"findings is a folder of entries, .*; name the folder above"
    ):
        run(tmp_path / "findings")
    assert list((tmp_path / "findings").iterdir()) == [entry]
    assert run(tmp_path).finished.cases == MAX_CASES


def test_a_campaign_in_a_directory_in_use_is_refused_with_the_process_that_has_it(tmp_path):
    entered, leave = threading.Event(), threading.Event()

    def wait(case: Case) -> Verdict:
        entered.set()
        assert leave.wait(60)
        return PASS

    first = threading.Thread(target=run, args=(tmp_path, wait), kwargs={"max_cases": 1})
    first.start()
    assert entered.wait(60)
    with pytest.raises(
        UsageError, match=f"another campaign runs in .*: process {os.getpid()} on "
    ):
        run(tmp_path)
    leave.set()
    first.join()
    assert run(tmp_path).finished.cases == MAX_CASES


def test_a_campaign_stops_when_nothing_new_comes(tmp_path):
    ran = campaign(tmp_path, lambda case: PASS, cases=numbered(), stop_after_no_new=0.2)
    assert ran.finished.reason == "nothing new for 0.2 s"
    assert ran.finished.complete
    with history(tmp_path) as journal:
        (session,) = journal.sessions()
    assert session.elapsed >= session.last_new + 0.2


def test_the_time_without_anything_new_goes_on_in_the_next_session(tmp_path):
    judged: list[float] = []

    def half_a_second_later(event: events.Event) -> bool:
        if isinstance(event, events.CaseJudged):
            judged.append(event.elapsed)
        return bool(judged) and event.elapsed > judged[0] + 0.5

    options: dict[str, Any] = {
        "cases": numbered(),
        "verdict_of": lambda case: PASS,
        "max_cases": None,
    }
    killed(tmp_path, half_a_second_later, **options)
    ran = run(tmp_path, **options, stop_after_no_new=0.4)
    assert ran.finished.reason == "nothing new for 0.4 s"
    assert not ran.of(events.CaseJudged)


def test_a_disk_that_fills_up_ends_the_campaign_with_one_line_and_the_journal_stays_whole(
    tmp_path,
):
    """A limit on the size of files is a full disk for whoever writes one."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def limited() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
        ran = run(tmp_path, lambda case: PASS, max_cases=10_000)
        there.send((ran.code, ran.finished.reason, ran.finished.complete))

    process = context.Process(target=limited)
    process.start()
    process.join(120)
    code, reason, complete = here.recv()
    assert (code, complete) == (4, False)
    assert "cannot use the journal" in reason
    assert "\n" not in reason
    with history(tmp_path) as journal:
        judged = journal.counts(1)["PASS"]
        assert journal.rows("PRAGMA integrity_check") == [("ok",)]
    assert judged > 10
    ran = run(tmp_path, lambda case: PASS, max_cases=judged + 3)
    assert (ran.code, ran.finished.cases) == (0, judged + 3)
