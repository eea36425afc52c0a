"""What waits to be followed up, and who waits for it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from fake_campaign import PASS, campaign, divergence, make_case, numbered

from fuzzshard.campaign import backlog, worker
from fuzzshard.campaign.backlog import FULL, Backlog, Suspicion
from fuzzshard.case.case import Case
from fuzzshard.errors import InfraError
from fuzzshard.events import CampaignFinished, CaseJudged, CaseStarted, Event, FindingSaved
from fuzzshard.verdict import Verdict


def suspicion(index: int) -> Suspicion:
    return Suspicion(index, make_case(index), divergence(), False, Path(f"{index}"))


def test_what_has_waited_longest_comes_first_and_nothing_comes_twice() -> None:
    waiting = Backlog(worlds=1, followers=1)
    waiting.put(suspicion(1), suspicion(2))
    waiting.put(suspicion(3))
    taken = [waiting.take(wait=True), waiting.take(wait=False)]
    assert taken == [suspicion(1), suspicion(2)]
    assert list(waiting.drain()) == [suspicion(3)]
    assert waiting.take(wait=False) is None


def test_a_follower_waits_until_the_last_world_has_left() -> None:
    waiting = Backlog(worlds=2, followers=1)
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(waiting.take(wait=True)))
    thread.start()
    waiting.leave()
    thread.join(0.1)
    assert thread.is_alive()
    waiting.leave()
    thread.join(10)
    assert taken == [None]


@pytest.mark.parametrize("number", [0, FULL - 1, FULL])
def test_worlds_help_where_many_wait_and_at_once_where_nobody_follows(number: int) -> None:
    waiting = Backlog(worlds=1, followers=1)
    waiting.put(*map(suspicion, range(number)))
    assert waiting.is_full is (number == FULL)
    waiting.leave(follower=True)
    assert waiting.is_full is (number > 0)


def test_a_world_waits_for_what_may_be_the_last_finding_unless_nobody_works_on_it() -> None:
    waiting = Backlog(worlds=1, followers=1)
    waiting.put(suspicion(0))
    assert waiting.take(wait=True)
    thread = threading.Thread(target=waiting.wait_while_in_work, args=(1,))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    waiting.done()
    thread.join(10)
    assert not thread.is_alive()
    waiting.put(suspicion(1))
    waiting.leave(follower=True)
    waiting.wait_while_in_work(1)


def test_fresh_cases_run_while_a_finding_is_followed_up(tmp_path: Path) -> None:
    """The finding of the first case is not confirmed before the tenth case has begun."""
    begun, followed = threading.Event(), threading.Event()

    def verdict_of(case: Case) -> Verdict:
        if case.seed == 10:  # a world that has no more cases helps, and is not to be the faster
            assert followed.wait(30)
        if case.seed:
            return PASS
        if threading.current_thread().name != "fuzzshard-world-0":
            followed.set()
            assert begun.wait(30)
        return divergence()

    def sink(event: Event) -> None:
        if isinstance(event, CaseStarted) and event.index == 9:
            begun.set()

    ran = campaign(tmp_path, verdict_of, sink=sink, max_cases=12)
    (saved,) = ran.of(FindingSaved)
    assert saved.world == 1
    assert sorted(event.index for event in ran.of(CaseJudged)) == list(range(12))


def test_where_no_more_ranks_start_the_world_that_found_it_follows_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = worker.start_ranks

    def only_the_first(*arguments: object) -> None:
        if threading.current_thread().name != "fuzzshard-world-0":
            raise InfraError("there is no memory for another rank")
        start(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(worker, "start_ranks", only_the_first)
    ran = campaign(tmp_path, lambda case: divergence() if case.seed == 1 else PASS, max_cases=8)
    (saved,) = ran.of(FindingSaved)
    assert (saved.world, ran.code, ran.finished.cases) == (0, 1, 8)


def test_no_case_runs_while_the_last_finding_that_was_asked_for_is_in_work(tmp_path: Path) -> None:
    def verdict_of(case: Case) -> Verdict:
        if threading.current_thread().name != "fuzzshard-world-0":
            time.sleep(0.02)
        return divergence() if case.seed == 1 else PASS

    ran = campaign(tmp_path, verdict_of, max_findings=1)
    assert len(ran.of(FindingSaved)) == 1
    assert len(ran.of(CaseStarted)) <= 3


def test_rows_run_on_mended_torch_while_more_wait_than_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every case fails on torch as it is, and explaining one takes longer than to run one."""
    monkeypatch.setattr(worker, "ALIKE", 1)
    monkeypatch.setattr(worker, "STOCK_ONE_IN", 1)
    monkeypatch.setattr(worker, "STOCK_TURN", 0)
    done = threading.Event()

    def on_mended(case: Case, mends: tuple[str, ...]) -> Verdict:
        if threading.current_thread().name != "fuzzshard-world-0":
            assert done.wait(30)
        return PASS

    def sink(event: Event) -> None:
        if isinstance(event, CaseStarted) and event.index == 19:
            done.set()

    ran = campaign(
        tmp_path,
        lambda case: divergence(),
        with_mends=on_mended,
        mends="both",
        max_cases=20,
        sink=sink,
        cases=numbered(lambda i: make_case(i)),
    )
    first = [entry for entry in ran.log if entry.startswith("run ")]
    on_stock = [entry for entry in first if not entry.endswith("mended")]
    assert backlog.LONG <= len(on_stock) <= backlog.LONG + 2
    (finished,) = ran.of(CampaignFinished)
    assert (finished.cases, finished.suspects) == (20, ())
