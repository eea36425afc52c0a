"""Campaigns that tell each other what they find, as if on several nodes."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fake_campaign import PASS, Ran, campaign, divergence, make_case, numbered

from fuzzshard.campaign.exchange import SILENT_SECONDS, Exchange, NodeState, node_name, read_nodes
from fuzzshard.campaign.known import Found, Registry
from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.store import CASE_FILE, SCRIPT_FILE
from fuzzshard.errors import InfraError, UsageError
from fuzzshard.events import Event, Exchanged, FindingHit, FindingSaved
from fuzzshard.report.exchange_status import exchange_lines, read_exchange
from fuzzshard.report.stats import stats_writer
from fuzzshard.verdict import Verdict

SIGNATURE = "divergence/fully_shard/gradient"
ENDLESS = 10_000


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for often in ("SECONDS_BETWEEN", "GLANCE_SECONDS"):
        monkeypatch.setattr(f"fuzzshard.campaign.exchange.{often}", 0.02)


@pytest.fixture
def exchange(tmp_path: Path) -> Path:
    folder = tmp_path / "exchange"
    folder.mkdir()
    return folder


def fails_at(seed: int) -> Callable[[Case], Verdict]:
    return lambda case: divergence() if case.seed == seed else PASS


def told(exchange: Path) -> list[Path]:
    return sorted(exchange.glob(f"*/findings/*/{CASE_FILE}"))


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def slowly(case: Case) -> Verdict:
    time.sleep(0.005)
    return PASS


def other_node(exchange: Path, *, silent: float = 0.0, **state: object) -> Path:
    """The folder of a campaign on another machine, which tells what ``state`` says."""
    folder = exchange / "other-12345678"
    folder.mkdir(exist_ok=True)
    file = folder / "node.json"
    told = {"host": "other", "pid": 1, "corpus": "/local", **state}
    file.write_bytes(msgspec.json.encode(msgspec.convert(told, NodeState)))
    then = time.time() - silent
    os.utime(file, (then, then))
    return folder


class InBackground(threading.Thread):
    """A campaign of its own, in a thread."""

    def __init__(self, corpus: Path, verdict_of: Callable[[Case], Verdict], **options: object):
        super().__init__(daemon=True)
        self.result: Ran | None = None
        self.heard: list[Event] = []
        self.call = lambda: campaign(corpus, verdict_of, sink=self.heard.append, **options)

    def run(self) -> None:
        self.result = self.call()

    def ran(self) -> Ran:
        self.join(90)
        assert self.result is not None
        return self.result


def test_what_one_campaign_has_found_is_counted_by_the_next(tmp_path, exchange):
    first = campaign(tmp_path / "a", fails_at(2), max_cases=5, exchange=exchange)
    second = campaign(tmp_path / "b", fails_at(2), max_cases=5, exchange=exchange)
    assert (first.code, second.code) == (1, 0)
    (hit,) = second.of(FindingHit)
    assert not second.of(FindingSaved)
    assert read_entry(Path(hit.path) / CASE_FILE).signature == SIGNATURE
    assert Path(hit.path).parent == tmp_path / "b" / "findings"
    assert second.log.count("restart") == 1
    assert len(told(exchange)) == 1


def test_the_last_figures_of_a_campaign_are_told_when_it_has_ended(tmp_path, exchange):
    campaign(
        tmp_path / "a",
        slowly,
        max_cases=30,
        exchange=exchange,
        sink=stats_writer(tmp_path / "a"),
    )
    (told,) = read_exchange(exchange)[0].campaigns
    assert told.stats is not None
    assert (told.stats.state, told.stats.cases) == ("ended", 30)


def test_a_campaign_that_runs_hears_of_what_another_one_finds(tmp_path, exchange):
    listening = InBackground(tmp_path / "a", slowly, max_cases=ENDLESS, exchange=exchange)
    listening.start()
    until(lambda: read_nodes(exchange, 0.0))
    campaign(tmp_path / "b", fails_at(2), max_cases=3, exchange=exchange)
    until(lambda: list((tmp_path / "a" / "findings").glob("*/case.json")))
    (exchange / "stop").touch()
    ran = listening.ran()
    assert ran.code == 0
    assert ran.finished.reason == f"{exchange / 'stop'} is there"
    learned = [path for event in ran.of(Exchanged) for path in event.learned]
    assert len(learned) == 1
    assert max(event.nodes for event in ran.of(Exchanged)) == 2


@pytest.mark.parametrize("seed", [0, 3], ids=["the same case", "another case"])
def test_what_another_campaign_works_on_waits_for_it_and_is_shrunk_once(
    tmp_path, exchange, monkeypatch, seed
):
    shrinking, go_on = threading.Event(), threading.Event()

    class Shrunk:
        finished = True

        def __init__(self, case: Case) -> None:
            self.case = case

    def shrink(case: Case, still_fails: object, **_: object) -> Shrunk:
        shrinking.set()
        assert go_on.wait(90)
        return Shrunk(case)

    monkeypatch.setattr("fuzzshard.campaign.reduce.shrink", shrink)
    first = InBackground(tmp_path / "a", fails_at(0), max_cases=2, exchange=exchange)
    first.start()
    assert shrinking.wait(90)

    def fails_once_slowly(case: Case) -> Verdict:
        time.sleep(0.005)
        return divergence() if case.seed == seed else PASS

    second = InBackground(tmp_path / "b", fails_once_slowly, max_cases=ENDLESS, exchange=exchange)
    second.start()
    until(lambda: list((tmp_path / "b" / "findings").glob("*/case.json")))
    assert told(exchange), "what is not shrunk yet is safe as well"
    go_on.set()
    first_ran = first.ran()
    until(lambda: any(isinstance(event, FindingHit) for event in second.heard))
    (exchange / "stop").touch()
    ran = second.ran()
    assert len(first_ran.of(FindingSaved)) == 1
    assert not ran.of(FindingSaved)
    assert len(ran.of(FindingHit)) == 1
    assert (first_ran.code, ran.code) == (1, 0)
    assert len(told(exchange)) == 1
    assert len(list((tmp_path / "b" / "findings").iterdir())) == 1


@pytest.mark.parametrize(
    "state", [{"silent": SILENT_SECONDS + 1}, {"ended": "time is up"}], ids=["lost", "ended"]
)
def test_what_a_campaign_that_is_gone_worked_on_is_free(tmp_path, exchange, state):
    other_node(exchange, claims=(SIGNATURE,), **state)
    ran = campaign(tmp_path / "a", fails_at(1), max_cases=3, exchange=exchange)
    assert ran.code == 1
    assert len(ran.of(FindingSaved)) == 1


def test_what_another_campaign_works_on_to_the_end_is_left_unfinished(tmp_path, exchange):
    other_node(exchange, claims=(SIGNATURE,))
    ran = campaign(tmp_path / "a", fails_at(1), max_cases=3, exchange=exchange)
    assert not ran.of(FindingSaved)
    assert ran.code == 1
    assert len(ran.finished.unresolved) == 1
    other_node(exchange, ended="time is up")
    again = campaign(tmp_path / "a", fails_at(1), max_cases=4, exchange=exchange)
    assert len(again.of(FindingSaved)) == 1


@pytest.mark.parametrize("is_empty", [True, False], ids=["an empty folder", "no folder"])
def test_an_exchange_that_goes_away_ends_nothing_and_hears_of_all_when_it_is_back(
    tmp_path, is_empty
):
    exchange, new = tmp_path / "exchange", tmp_path / "new"

    def mount(place: Path) -> None:
        new.symlink_to(place)
        new.replace(exchange)

    disk, nothing = tmp_path / "disk", tmp_path / "nothing"
    disk.mkdir()
    nothing.mkdir() if is_empty else nothing.touch()
    mount(disk)

    def verdict_of(case: Case) -> Verdict:
        if case.seed in (1, 40):
            mount(nothing if case.seed == 1 else disk)
        return divergence() if case.seed == 20 else slowly(case)

    ran = campaign(tmp_path / "a", verdict_of, max_cases=60, exchange=exchange)
    assert (ran.code, ran.finished.cases) == (1, 60)
    problems = [event.problem for event in ran.of(Exchanged) if event.problem]
    assert is_empty or [str(exchange) in problem for problem in problems] == [True]
    assert len(told(exchange)) == 1


def test_an_exchange_that_hangs_does_not_keep_a_campaign_from_ending(
    tmp_path, exchange, monkeypatch
):
    hanging, never = threading.Event(), threading.Event()

    def hang(self: Exchange) -> str:
        if threading.current_thread().name == "fuzzshard-exchange":
            hanging.set()
            never.wait(60)
        return ""

    monkeypatch.setattr(Exchange, "_hear", hang)
    for waiting in ("STARTING_SECONDS", "CLOSING_SECONDS"):
        monkeypatch.setattr(f"fuzzshard.campaign.exchange.{waiting}", 0.1)
    ran = campaign(tmp_path / "a", slowly, max_cases=20, exchange=exchange)
    never.set()
    assert hanging.is_set()
    assert (ran.code, ran.finished.cases) == (0, 20)


def test_a_finding_is_worked_on_while_the_exchange_hangs(tmp_path, exchange, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(Exchange, "_look_around", lambda self: never.wait(60))
    for waiting in ("STARTING_SECONDS", "CLOSING_SECONDS"):
        monkeypatch.setattr(f"fuzzshard.campaign.exchange.{waiting}", 0.1)
    ran = campaign(tmp_path / "a", fails_at(1), max_cases=3, exchange=exchange)
    never.set()
    assert ran.code == 1
    assert len(ran.of(FindingSaved)) == 1


def test_what_waits_is_free_when_nobody_has_been_heard_of_for_long(
    tmp_path, exchange, monkeypatch
):
    monkeypatch.setattr("fuzzshard.campaign.exchange.SILENT_SECONDS", 0.3)
    other = other_node(exchange, silent=-3600, claims=(SIGNATURE,))

    def verdict_of(case: Case) -> Verdict:
        if case.seed == 5:
            other.parent.rename(tmp_path / "unmounted")
        return divergence() if case.seed == 1 else slowly(case)

    ran = campaign(tmp_path / "a", verdict_of, max_cases=200, exchange=exchange)
    assert len(ran.of(FindingSaved)) == 1


def test_what_a_node_told_before_it_lost_its_disk_is_not_lost(tmp_path, exchange):
    campaign(tmp_path / "a", fails_at(2), max_cases=5, exchange=exchange)
    shutil.rmtree(tmp_path / "a")
    again = campaign(tmp_path / "a", fails_at(2), max_cases=5, exchange=exchange)
    assert len(told(exchange)) == 1
    assert len(again.of(FindingHit)) == 1
    assert not again.of(FindingSaved)


def test_what_could_not_be_told_once_is_told_later(tmp_path, exchange, monkeypatch):
    from fuzzshard.campaign import exchange as module

    write, failed = module.write_atomic, []

    def fails_once(path: Path, data: bytes, **where: Path) -> None:
        if path.name == CASE_FILE and b'"unshrunk":true' not in data and not failed:
            failed.append(path)
            raise InfraError(f"cannot write {path}: no space", "free some space")
        write(path, data, **where)

    monkeypatch.setattr(module, "write_atomic", fails_once)

    def verdict_of(case: Case) -> Verdict:
        return divergence() if case.seed == 1 else slowly(case)

    ran = campaign(tmp_path / "a", verdict_of, max_cases=60, exchange=exchange)
    assert ran.code == 1
    assert failed
    assert [read_entry(file).unshrunk for file in told(exchange)] == [False]


def test_a_stop_is_heard_though_nothing_can_be_told(tmp_path, exchange, monkeypatch):
    def fail(self: Exchange) -> bool:
        raise OSError("no space left")

    monkeypatch.setattr(Exchange, "_tell", fail)
    (exchange / "stop").touch()
    ran = campaign(tmp_path / "a", slowly, max_cases=ENDLESS, exchange=exchange)
    assert ran.finished.reason == f"{exchange / 'stop'} is there"


def test_an_entry_that_cannot_be_taken_over_keeps_none_of_the_others(tmp_path, exchange):
    campaign(tmp_path / "a", fails_at(2), max_cases=5, exchange=exchange)
    (good,) = told(exchange)
    bad = other_node(exchange) / "findings" / "a-bad-one"
    shutil.copytree(good.parent, bad)
    entry = read_entry(good)
    renamed = msgspec.structs.replace(entry, signature="divergence/ddp/loss")
    (bad / CASE_FILE).write_bytes(encode_entry(renamed))
    (bad / SCRIPT_FILE).write_bytes(b"\xff")
    last = exchange / "zzz" / "findings" / "a-good-one"
    shutil.move(good.parent, last)
    (exchange / "zzz" / "node.json").write_bytes(b"\xff")
    ran = campaign(tmp_path / "b", fails_at(2), max_cases=5, exchange=exchange)
    assert len(ran.of(FindingHit)) == 1
    assert any(event.problem for event in ran.of(Exchanged))


class NextDoor:
    """Claims of which the tests decide whether another node has them."""

    def __init__(self) -> None:
        self.free = True
        self.given: list[str] = []

    def take(self, signature: str) -> bool:
        return self.free

    def give(self, signature: str) -> None:
        self.given.append(signature)


def found(seed: int) -> Found:
    return Found(seed, make_case(seed), divergence(), path=Path(f"case-{seed}"))


def test_what_another_node_works_on_is_parked_until_it_has_done_that():
    registry, claims = Registry(), NextDoor()
    registry.claims = claims
    claims.free = False
    assert not registry.claim(found(1))
    assert not registry.claim(found(2))
    assert registry.elsewhere == (SIGNATURE,)
    waited = registry.return_from_elsewhere(SIGNATURE)
    assert [each.index for each in waited] == [1, 2]
    claims.free = True
    assert registry.claim(waited[0])
    assert registry.unresolved == (Path("case-1"),)
    assert registry.settle(waited[0], None) == []
    assert claims.given == [SIGNATURE]


def test_an_error_of_the_exchange_itself_is_said(tmp_path, exchange, monkeypatch):
    def fail(self: Exchange) -> str:
        raise KeyError("a mistake")

    monkeypatch.setattr(Exchange, "_hear", fail)
    ran = campaign(tmp_path / "a", slowly, max_cases=20, exchange=exchange)
    assert ran.code == 0
    assert [event.problem for event in ran.of(Exchanged)] == ["'a mistake'"]


def test_a_damaged_entry_of_another_node_is_said_and_passed_over(tmp_path, exchange):
    campaign(tmp_path / "a", fails_at(2), max_cases=5, exchange=exchange)
    broken = other_node(exchange) / "findings" / "a-broken-one"
    broken.mkdir(parents=True)
    (broken / CASE_FILE).write_text("{")
    ran = campaign(tmp_path / "b", fails_at(2), max_cases=5, exchange=exchange)
    assert len(ran.of(FindingHit)) == 1
    (problem,) = {event.problem for event in ran.of(Exchanged)}
    assert str(broken / CASE_FILE) in problem


def test_a_finding_that_does_not_come_back_leaves_the_exchange(tmp_path, exchange):
    runs = iter([divergence()])
    ran = campaign(
        tmp_path / "a",
        lambda case: next(runs, PASS) if case.seed == 1 else slowly(case),
        max_cases=20,
        exchange=exchange,
    )
    assert ran.finished.cases == 20
    assert not told(exchange)


def test_an_entry_that_is_damaged_at_home_stays_whole_in_the_exchange(tmp_path, exchange):
    campaign(tmp_path / "a", fails_at(2), max_cases=5, exchange=exchange)
    (file,) = (tmp_path / "a" / "findings").glob(f"*/{CASE_FILE}")
    file.write_text("{")
    campaign(tmp_path / "a", PASS_ALL, max_cases=2, exchange=exchange, fresh=True)
    assert read_entry(told(exchange)[0]).signature == SIGNATURE


def test_findings_of_known_causes_stay_at_home(tmp_path, exchange):
    campaign(tmp_path / "a", fails_at(2), max_cases=5)
    (file,) = (tmp_path / "a" / "findings").glob(f"*/{CASE_FILE}")
    entry = msgspec.structs.replace(read_entry(file), cause="divide_factor_divides_twice")
    file.write_bytes(encode_entry(entry))
    campaign(tmp_path / "a", lambda case: PASS, max_cases=2, exchange=exchange, fresh=True)
    assert not told(exchange)


def test_a_campaign_that_is_continued_keeps_its_name_and_two_corpora_have_two(tmp_path):
    assert node_name(tmp_path / "a") == node_name(tmp_path / "b" / ".." / "a")
    assert node_name(tmp_path / "a") != node_name(tmp_path / "b")


@pytest.mark.parametrize("place", ["missing", "corpus", "corpus/inside", "."])
def test_an_exchange_that_cannot_be_one_is_refused(tmp_path, place):
    if place != "missing":
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
    with pytest.raises(UsageError, match="exchange"):
        campaign(tmp_path / "corpus", lambda case: PASS, max_cases=1, exchange=tmp_path / place)


def test_the_status_of_an_exchange_adds_up(tmp_path, exchange):
    for corpus in ("a", "b"):
        campaign(
            tmp_path / corpus,
            fails_at(2),
            max_cases=5,
            exchange=exchange,
            cases=numbered(make_case),
        )
        from fuzzshard.report.stats import write_stats

        write_stats(tmp_path / corpus)
        campaign(tmp_path / corpus, PASS_ALL, max_cases=1, exchange=exchange, fresh=True)
    other_node(exchange, silent=SILENT_SECONDS + 1, claims=(SIGNATURE,))
    status, findings = read_exchange(exchange)
    assert sorted(c.condition for c in status.campaigns) == ["ended", "ended", "lost"]
    assert status.cases == 10
    assert status.verdicts == {"PASS": 8, "DIVERGENCE": 2}
    assert [finding.signature for finding in status.findings] == [SIGNATURE]
    lines = list(exchange_lines(exchange, status, findings))
    assert lines[0] == f"{exchange}: 3 campaigns, 2 ended, 1 lost"
    assert any("works on divergence/fully_shard/gradient" in line for line in lines)


def PASS_ALL(case: Case) -> Verdict:
    return PASS


def spoilt(exchange: Path, good: Path, private: Path) -> list[str]:
    """Puts all that a hostile node can think of into an ``exchange``; the names of what is bad.

    ``good`` is the case of a finding, which each bad entry has another signature for.
    """
    node = other_node(exchange)
    findings = node / "findings"
    for index, name in enumerate(names := ["linked-script", "piped-script", "linked-unshrunk"]):
        shutil.copytree(good.parent, findings / name)
        entry = msgspec.structs.replace(read_entry(good), signature=f"crash/ddp/Error{index}")
        (findings / name / CASE_FILE).write_bytes(encode_entry(entry))
    (findings / "linked-script" / SCRIPT_FILE).unlink()
    (findings / "linked-script" / SCRIPT_FILE).symlink_to(private)
    (findings / "piped-script" / SCRIPT_FILE).unlink()
    os.mkfifo(findings / "piped-script" / SCRIPT_FILE)
    (findings / "linked-unshrunk" / "unshrunk.json").unlink(missing_ok=True)
    (findings / "linked-unshrunk" / "unshrunk.json").symlink_to(private)
    for name in ("linked-case", "piped-case", "huge-case"):
        (findings / name).mkdir()
    (findings / "linked-case" / CASE_FILE).symlink_to(good)
    os.mkfifo(findings / "piped-case" / CASE_FILE)
    with (findings / "huge-case" / CASE_FILE).open("wb") as file:
        file.truncate(2**40)
    (findings / "linked-folder").symlink_to(good.parent)
    (exchange / "piped-node").mkdir()
    os.mkfifo(exchange / "piped-node" / "node.json")
    (exchange / "linked-node").symlink_to(good.parents[2])
    return [*names, "linked-case", "piped-case", "huge-case", "linked-folder", "piped-node"]


def test_a_hostile_node_costs_itself_and_nothing_else(tmp_path, exchange):
    private = tmp_path / "private"
    private.write_text("print('private')")
    campaign(tmp_path / "a", fails_at(2), max_cases=5, exchange=exchange)
    (good,) = told(exchange)
    bad = spoilt(exchange, good, private)
    ran = campaign(tmp_path / "b", fails_at(2), max_cases=5, exchange=exchange)
    assert len(ran.of(FindingHit)) == 1
    assert [path.parent.name for path in (tmp_path / "b" / "findings").glob(f"*/{CASE_FILE}")] == [
        good.parent.name
    ]
    problems = [event.problem for event in ran.of(Exchanged) if event.problem]
    for name in [*bad, "linked-node"]:
        assert [name in problem for problem in problems].count(True) >= 1, name
    copies = [*(tmp_path / "b").rglob("*"), *exchange.glob(f"{node_name(tmp_path / 'b')}/**/*")]
    assert not any(b"private" in file.read_bytes() for file in copies if file.is_file())

    seen, findings = read_exchange(exchange)
    assert len(findings) == 1
    assert "linked-node" not in [each.name for each in seen.campaigns]


@pytest.mark.parametrize("place", ["", "findings"])
def test_a_link_in_the_place_of_our_folder_is_not_written_through(tmp_path, exchange, place):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = exchange / node_name(tmp_path / "a") / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere)
    ran = campaign(tmp_path / "a", fails_at(2), max_cases=5, exchange=exchange)
    assert ran.code == 1
    assert list(elsewhere.iterdir()) == []
    assert any(f"{link} is a symbolic link" in event.problem for event in ran.of(Exchanged))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_our_folder_that_belongs_to_another_user_is_not_written_to(tmp_path, exchange):
    ours = exchange / node_name(tmp_path / "a")
    ours.mkdir()
    os.chown(ours, 12345, -1)
    ran = campaign(tmp_path / "a", fails_at(2), max_cases=5, exchange=exchange)
    assert ran.code == 1
    assert list(ours.iterdir()) == []
    assert any("belongs to another user" in event.problem for event in ran.of(Exchanged))


def test_a_link_in_our_own_corpus_is_not_told(tmp_path, exchange):
    private = tmp_path / "private"
    private.write_text("private")
    campaign(tmp_path / "a", fails_at(2), max_cases=5)
    (file,) = (tmp_path / "a" / "findings").glob(f"*/{CASE_FILE}")
    (file.parent / "notes.txt").symlink_to(private)
    campaign(tmp_path / "a", slowly, max_cases=5, exchange=exchange)
    (copy,) = told(exchange)
    assert SCRIPT_FILE in [each.name for each in copy.parent.iterdir()]
    assert not (copy.parent / "notes.txt").exists()
