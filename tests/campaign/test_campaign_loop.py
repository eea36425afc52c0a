from __future__ import annotations

import errno
import importlib.metadata
import json
import threading
import time
from pathlib import Path

import msgspec
import pytest
from fake_campaign import (
    INFRA,
    PASS,
    campaign,
    divergence,
    make_case,
    numbered,
    shrink_seed_and_norm,
)

from fuzzshard.campaign.judge import Stopped
from fuzzshard.campaign.reduce import Judged
from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.expectation import with_observation
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.store import entry_files
from fuzzshard.errors import EXIT_INCONCLUSIVE, InfraError, UsageError
from fuzzshard.events import (
    CampaignFinished,
    CaseJudged,
    CaseStarted,
    CorpusLoaded,
    Event,
    FindingFlaky,
    FindingFound,
    FindingHit,
    FindingSaved,
    InfraTrouble,
    SaveFailed,
)
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.report.lines import event_lines
from fuzzshard.verdict import Status, Verdict


def fails_on(*seeds: int):
    return lambda case: divergence() if case.seed in seeds else PASS


def by_oracle(case: Case) -> Verdict:
    """Every even case is a finding with a signature of its own."""
    return divergence(f"oracle{case.seed}") if case.seed % 2 == 0 else PASS


def test_what_only_an_instrument_sees_comes_last_in_the_summary(tmp_path: Path) -> None:
    oracles = {0: "hooks", 1: "gradient"}
    ran = campaign(
        tmp_path,
        lambda case: divergence(oracles[case.seed]) if case.seed in oracles else PASS,
        max_cases=3,
    )
    assert [
        (found.signature.rpartition("/")[2], found.internal) for found in ran.finished.findings
    ] == [
        ("gradient", False),
        ("hooks", True),
    ]
    lines = [line.partition(",")[0] for line in event_lines(ran.finished)]
    assert [line for line in lines if "finding " in line][:2] == [
        "finding divergence/fully_shard/gradient",
        "internal finding divergence/fully_shard/hooks",
    ]
    entry = next(e for e in map(read_entry, entry_files([tmp_path])) if "hooks" in e.signature)
    assert entry.internal


def shrinking(monkeypatch: pytest.MonkeyPatch, shrink: object) -> None:
    monkeypatch.setattr("fuzzshard.campaign.reduce.shrink", shrink)


def without_bias(case: Case) -> Case:
    first, *others = case.model.children
    first = msgspec.structs.replace(first, module=Linear(out=4, bias=False))
    return msgspec.structs.replace(
        case, model=msgspec.structs.replace(case.model, children=(first, *others))
    )


def folders(corpus: Path, below: str = "findings") -> list[Path]:
    return sorted((corpus / below).iterdir()) if (corpus / below).exists() else []


def test_a_clean_campaign_exits_0(tmp_path):
    ran = campaign(tmp_path, lambda case: PASS, max_cases=5)
    assert ran.code == 0
    assert ran.finished.counts == {"PASS": 5}
    assert ran.finished.reason == "all cases were run"
    assert not folders(tmp_path)


def test_without_a_seed_every_campaign_has_its_own(tmp_path):
    seeds = {campaign(tmp_path, lambda case: PASS, max_cases=1).finished.seed for _ in range(3)}
    assert len(seeds) == 3


def test_a_finding_is_confirmed_saved_and_exits_1(tmp_path):
    ran = campaign(tmp_path, fails_on(2), max_cases=5)
    assert ran.code == 1
    (saved,) = ran.of(FindingSaved)
    entry = read_entry(Path(saved.path) / "case.json")
    assert entry.signature == "divergence/fully_shard/gradient"
    assert entry.confirmed is not None
    assert (entry.confirmed.runs, entry.confirmed.reproduced) == (3, 3)
    assert saved.script_fails is True
    assert saved.replay_command == f"fuzzshard replay {saved.path}"
    assert ran.log.count("restart") == 1 + 3


def test_a_finding_is_on_disk_before_it_is_confirmed_or_shrunk(tmp_path, monkeypatch):
    seen: list[int] = []

    def shrink(case, still_fails, **_):
        seen.append(len(folders(tmp_path)))
        raise RuntimeError("the shrinker is broken")

    shrinking(monkeypatch, shrink)
    ran = campaign(tmp_path, fails_on(2), max_cases=5)
    (saved,) = ran.of(FindingSaved)
    assert seen == [1]
    assert "the shrinker is broken" in saved.note
    assert ran.code == 1
    assert ran.finished.cases == 5


def test_the_shrunk_case_replaces_the_entry_and_the_unshrunk_one_stays_beside_it(
    tmp_path, monkeypatch
):
    shrinking(monkeypatch, shrink_seed_and_norm)
    ran = campaign(
        tmp_path,
        lambda case: divergence(),
        cases=numbered(lambda i: make_case(i + 7, norm=True)),
        max_cases=1,
    )
    (saved,) = ran.of(FindingSaved)
    (folder,) = folders(tmp_path)
    assert read_entry(folder / "case.json").case == make_case(0)
    assert json.loads((folder / "unshrunk.json").read_text())["seed"] == 7
    assert (saved.leaves_before, saved.leaves_after) == (2, 1)
    assert (saved.runs, saved.reproduced) == (3, 3)


def test_shrinking_does_not_slip_to_another_finding_or_a_looser_comparison(tmp_path, monkeypatch):
    def verdict_of(case: Case) -> Verdict:
        if case.seed == 1:
            return divergence(comparison="bounded")
        return divergence("output") if case.seed == 2 else divergence()

    def shrink(case, still_fails, **options):
        assert [still_fails(make_case(seed)) for seed in (1, 2, 3)] == [False, False, True]
        return shrink_seed_and_norm(case, still_fails, **options)

    shrinking(monkeypatch, shrink)
    ran = campaign(tmp_path, verdict_of, cases=numbered(lambda i: make_case(i + 9)), max_cases=1)
    assert ran.of(FindingSaved)[0].note == ""


def test_a_shrunk_case_that_does_not_repeat_gives_way_to_the_case_as_found(tmp_path, monkeypatch):
    failed_once: list[int] = []

    def verdict_of(case: Case) -> Verdict:
        if case.seed == 5:
            return divergence()
        failed_once.append(case.seed)
        return divergence() if len(failed_once) == 1 else PASS

    shrinking(monkeypatch, shrink_seed_and_norm)
    ran = campaign(
        tmp_path, verdict_of, cases=numbered(lambda i: make_case(5, norm=True)), max_cases=1
    )
    assert read_entry(folders(tmp_path)[0] / "case.json").case == make_case(5, norm=True)
    assert "did not repeat" in ran.of(FindingSaved)[0].note


def test_a_finding_that_does_not_repeat_is_kept_as_inconclusive_and_exits_3(tmp_path):
    runs: list[int] = []

    def verdict_of(case: Case) -> Verdict:
        runs.append(case.seed)
        return divergence() if case.seed == 2 and runs.count(2) == 1 else PASS

    ran = campaign(tmp_path, verdict_of, max_cases=4)
    assert ran.code == 3
    (flaky,) = ran.of(FindingFlaky)
    assert flaky.observed == ("PASS",)
    assert folders(tmp_path) == []
    (folder,) = folders(tmp_path, "inconclusive")
    entry = read_entry(folder / "case.json")
    assert entry.status is Status.INCONCLUSIVE
    assert entry.case == make_case(2)


def test_a_case_that_has_a_known_cause_is_a_hit_and_is_not_shrunk_again(tmp_path):
    ran = campaign(tmp_path, lambda case: divergence(), max_cases=4)
    assert len(ran.of(FindingSaved)) == 1
    assert sorted(hit.hits for hit in ran.of(FindingHit)) == [2, 3, 4]
    assert [finding.hits for finding in ran.finished.findings] == [4]
    assert len(folders(tmp_path)) == 1


def test_the_same_signature_without_the_known_cause_is_another_finding(tmp_path):
    cases = numbered(lambda i: make_case(i, norm=i < 2))
    ran = campaign(tmp_path, lambda case: divergence(), cases=cases, max_cases=4)
    assert len(ran.of(FindingSaved)) == 2


def test_a_minimal_case_that_was_reached_before_is_not_saved_twice(tmp_path, monkeypatch):
    shrinking(monkeypatch, shrink_seed_and_norm)
    first = campaign(tmp_path, fails_on(0, 1), cases=numbered(lambda i: make_case(1)), max_cases=1)
    without = without_bias(
        make_case(3, norm=True)
    )  # and so without the cause that the first one has
    second = campaign(
        tmp_path,
        lambda case: divergence(),
        cases=numbered(lambda i: msgspec.structs.replace(without, seed=3 + i)),
        max_cases=2,
    )
    (saved,) = second.of(FindingSaved)
    assert saved.duplicate
    assert saved.path == first.of(FindingSaved)[0].path
    assert len(folders(tmp_path)) == 1
    assert second.code == 0


def test_a_hit_of_a_finding_that_the_corpus_has_is_not_shrunk_again_and_exits_0(tmp_path):
    first = campaign(tmp_path, lambda case: divergence(), max_cases=1)
    second = campaign(
        tmp_path, lambda case: divergence(), cases=numbered(lambda i: make_case(9)), max_cases=2
    )
    assert [event.known for event in second.of(CorpusLoaded)] == [1]
    assert not second.of(FindingFound)
    assert [hit.path for hit in second.of(FindingHit)] == [first.of(FindingSaved)[0].path] * 2
    assert [(known.new, known.hits) for known in second.finished.findings] == [(False, 2)]
    assert second.code == 0


def test_a_new_finding_beside_a_known_one_exits_1(tmp_path):
    campaign(tmp_path, by_oracle, max_cases=1)
    ran = campaign(tmp_path, by_oracle, max_cases=3)
    assert [(known.new, known.hits) for known in ran.finished.findings] == [(False, 1), (True, 1)]
    assert ran.code == 1


def test_a_finding_that_the_corpus_has_as_fixed_is_news_when_it_is_back(tmp_path):
    campaign(tmp_path, lambda case: divergence(), max_cases=1)
    (file,) = entry_files([tmp_path])
    here = importlib.metadata.version("torch")
    fixed = with_observation(read_entry(file), here, present=False)
    told = msgspec.structs.replace(fixed, issue="https://x/1", good_on=(*fixed.good_on, "99.0"))
    file.write_bytes(encode_entry(told))
    ran = campaign(tmp_path, lambda case: divergence(), max_cases=2)
    assert not ran.of(CorpusLoaded)
    assert [(known.new, known.hits) for known in ran.finished.findings] == [(True, 2)]
    assert ran.code == 1
    after = read_entry(file)
    assert (after.issue, after.good_on, after.lifecycle) == (
        "https://x/1",
        ("99.0",),
        Lifecycle.FIXED,
    )


def test_findings_of_the_corpus_that_are_not_met_are_not_findings_of_the_campaign(tmp_path):
    campaign(tmp_path, lambda case: divergence(), max_cases=1)
    ran = campaign(tmp_path, lambda case: PASS, max_cases=3)
    assert (ran.code, ran.finished.findings) == (0, ())


def test_what_was_found_under_another_preload_or_was_never_confirmed_is_not_known(tmp_path):
    campaign(tmp_path, lambda case: divergence(), max_cases=1)
    (file,) = entry_files([tmp_path])
    for other in ({"preload": ("fault.py",)}, {"confirmed": None}):
        changed = msgspec.structs.replace(read_entry(file), **other)
        file.write_bytes(encode_entry(changed))
        assert not campaign(tmp_path, lambda case: PASS, max_cases=1).of(CorpusLoaded)


def test_max_findings_counts_distinct_findings(tmp_path):
    ran = campaign(tmp_path, by_oracle, max_findings=3)
    assert len(ran.of(FindingSaved)) == 3
    assert ran.finished.reason == "3 distinct findings"
    assert ran.code == 1


def test_a_campaign_that_judged_no_case_is_inconclusive(tmp_path):
    ran = campaign(tmp_path, lambda case: PASS, max_time=1e-9)
    assert (ran.of(CaseJudged), ran.code) == ([], EXIT_INCONCLUSIVE)


def test_max_time_ends_the_campaign_and_bounds_shrinking(tmp_path, monkeypatch):
    given: list[float] = []

    def shrink(case, still_fails, *, budget, **_):
        given.append(budget.max_seconds)
        while still_fails(case):
            time.sleep(0.01)

    shrinking(monkeypatch, shrink)
    monkeypatch.setattr("fuzzshard.campaign.control.OVERTIME_SECONDS", 0.1)
    ran = campaign(tmp_path, fails_on(2), max_time=0.5)
    assert ran.code == 1
    assert ran.finished.reason == "time is up"
    assert ran.finished.elapsed < 3
    assert 0 < given[0] <= 0.5
    assert len(folders(tmp_path)) == 1


def test_infra_is_retried_once_on_fresh_ranks(tmp_path):
    runs: list[int] = []

    def verdict_of(case: Case) -> Verdict:
        runs.append(case.seed)
        return INFRA if case.seed == 1 and runs.count(1) == 1 else PASS

    ran = campaign(tmp_path, verdict_of, max_cases=3)
    assert ran.finished.counts == {"PASS": 3}
    assert ran.log[:5] == ["restart", "run 0", "run 1", "restart", "run 1"]


def test_five_cases_without_a_verdict_in_a_row_stop_the_campaign_with_exit_4(tmp_path):
    ran = campaign(tmp_path, lambda case: INFRA if case.seed >= 3 else PASS)
    assert ran.code == 4
    assert "the machine is on fire" in ran.finished.reason
    assert ran.finished.counts == {"PASS": 3, "INFRA": 5}
    assert [event.in_a_row for event in ran.of(InfraTrouble)] == [1, 2, 3, 4]


def test_a_verdict_in_between_starts_the_count_again(tmp_path):
    ran = campaign(tmp_path, lambda case: INFRA if case.seed % 3 else PASS, max_cases=20)
    assert ran.code == 0


def test_ranks_that_cannot_start_are_exit_4(tmp_path):
    def verdict_of(case: Case) -> Verdict:
        raise InfraError("no rank could start", "run doctor")

    ran = campaign(tmp_path, verdict_of)
    assert ran.code == 4
    assert "no rank could start" in ran.finished.reason
    assert "\n" not in ran.finished.reason


@pytest.mark.parametrize(("failing", "code"), [(2, 0), (3, 4)])
def test_ranks_are_started_three_times_before_a_campaign_gives_up(tmp_path, failing, code):
    ran = campaign(tmp_path, lambda case: PASS, failing_starts=failing, max_cases=2)
    assert (ran.code, ran.finished.cases) == (code, 2 if code == 0 else 0)


def test_inconclusive_verdicts_alone_are_exit_3(tmp_path):
    verdict = Verdict(status=Status.INCONCLUSIVE, message="noise could explain it")
    ran = campaign(tmp_path, lambda case: verdict, max_cases=2)
    assert ran.code == 3


def test_a_full_disk_is_exit_4_keeps_what_was_saved_and_prints_the_case(tmp_path, monkeypatch):
    def sink(event: Event) -> None:
        if isinstance(event, FindingSaved):
            monkeypatch.setattr("os.fsync", full)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def cases_after_the_first_wait(seed: int, /, **_: object):
        yield make_case(0)
        while not saved:
            time.sleep(0.01)
        yield make_case(2)

    saved: list[Event] = []

    def watch(event: Event) -> None:
        sink(event)
        if isinstance(event, FindingSaved):
            saved.append(event)

    ran = campaign(tmp_path, by_oracle, sink=watch, cases=cases_after_the_first_wait)
    assert ran.code == 4
    assert "No space left on device" in ran.finished.reason
    (failed,) = ran.of(SaveFailed)
    assert json.loads(bytes(failed.case))["seed"] == 2
    (folder,) = [f for f in folders(tmp_path) if (f / "case.json").exists()]
    assert read_entry(folder / "case.json").case == make_case(0)


def test_several_worlds_judge_each_case_exactly_once(tmp_path):
    ran = campaign(tmp_path, by_oracle, worlds=3, max_cases=24)
    assert sorted(e.index for e in ran.of(CaseJudged)) == list(range(24))
    assert len(ran.of(FindingSaved)) == 12
    assert {e.world for e in ran.of(CaseStarted)} == {0, 1, 2}
    assert ran.log.count("close") == 3 + 1


def test_several_worlds_that_find_the_same_at_once_report_it_once(tmp_path):
    ran = campaign(tmp_path, lambda case: divergence(), worlds=3, max_cases=30)
    assert len(ran.of(FindingSaved)) == 1
    assert len(folders(tmp_path)) == 1
    assert len(ran.of(FindingHit)) >= len(ran.of(FindingFound)) - 1


def test_a_fault_of_the_generator_ends_with_a_summary_and_is_raised(tmp_path):
    def broken(seed: int, /, **_: object):
        yield make_case(0)
        raise ZeroDivisionError("in a strategy")

    events: list[Event] = []
    with pytest.raises(ZeroDivisionError):
        campaign(tmp_path, lambda case: PASS, cases=broken, sink=events.append)
    assert isinstance(events[-1], CampaignFinished)
    assert "in a strategy" in events[-1].reason
    assert events[-1].exit_code == 4


@pytest.mark.parametrize("wrong", [{"worlds": 0}, {"seed": -1}, {"max_time": 0.0}])
def test_options_that_make_no_sense_are_usage_errors(tmp_path, wrong):
    with pytest.raises(UsageError):
        campaign(tmp_path, lambda case: PASS, **wrong)


def test_a_reproducer_that_does_not_fail_is_said_in_the_event_and_in_the_entry(tmp_path):
    ran = campaign(tmp_path, fails_on(1), max_cases=2, script_fails=False)
    (saved,) = ran.of(FindingSaved)
    assert saved.script_fails is False
    assert "repro.py" in read_entry(Path(saved.path) / "case.json").notes


def test_findings_that_waited_for_one_that_is_cut_off_are_left_unresolved_with_it(
    tmp_path, monkeypatch
):
    """One world looks at the first of them; the other parks the second, and has gone on."""
    parked = threading.Event()

    def cut_off(*_: object, **__: object) -> Judged:
        assert parked.wait(60)
        raise Stopped

    monkeypatch.setattr("fuzzshard.campaign.follow_up.confirm_and_shrink", cut_off)

    def sink(event: Event) -> None:
        if isinstance(event, CaseStarted) and event.index == 2:
            parked.set()

    ran = campaign(tmp_path, fails_on(0, 1), sink=sink, worlds=2, max_cases=3)
    assert len({event.path for event in ran.of(FindingFound)}) == 2
    assert set(ran.finished.unresolved) == {event.path for event in ran.of(FindingFound)}
