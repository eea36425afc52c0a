from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from chaos import check_cases
from chaos_campaign import Session, of_session

from fuzzshard.events import CaseJudged, CaseStarted
from fuzzshard.journal.history import History
from fuzzshard.journal.schema import JOURNAL_FILE, connect
from fuzzshard.journal.writer import JournalWriter, SessionStart
from fuzzshard.verdict import Status


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Three cases, of which two were judged."""
    path = tmp_path / JOURNAL_FILE
    start = SessionStart(
        stream={}, limits={}, seed=1, stream_seed=1, world_size=2, worlds=1, device="cpu"
    )
    writer = JournalWriter(path, connect(path), start)
    for index in range(3):
        writer.record(CaseStarted(index=index))
        if index < 2:
            writer.record(CaseJudged(index=index, status=Status.PASS, seconds=0.1))
    return path


def said(
    started: Iterable[int], judged: Iterable[int], *, passed: int = 2, ending: str = "killed"
) -> SimpleNamespace:
    cases = {"case_started": list(started), "case_judged": list(judged)}
    return SimpleNamespace(cases=cases, finished={"counts": {"PASS": passed}}, ending=ending)


@pytest.mark.parametrize(
    ("session", "wrong"),
    [
        (said(range(3), range(2)), ""),
        (said(range(2), range(2)), ""),  # killed between writing and saying
        (said(range(3), range(3)), "2 case_judged written, 3 said"),
        (said(range(5), range(4), ending="disk full"), ""),
        (said((0, 4, 1, 2), range(2), ending="disk full"), "3 case_started written, 4 said"),
        (said(range(5), range(2)), "3 case_started written, 5 said"),
        (said(range(3), ()), "2 case_judged written, 0 said"),
        (said(range(3), range(2), passed=3), "the last summary does not count"),
    ],
)
def test_chaos_notices_what_is_missing_in_the_journal(journal, session, wrong):
    with History(journal) as history:
        problems = check_cases(history, [session], worlds=1)
    assert [wrong in problem for problem in problems] == ([True] if wrong else [])


def test_chaos_notices_a_session_that_is_not_in_the_journal(journal):
    with History(journal) as history:
        problems = check_cases(history, [said(range(3), range(2))] * 2, worlds=1)
    assert "1 sessions in the journal, 2 were run" in problems[0]


LEADER = """
import subprocess, sys

rank = subprocess.Popen(["sleep", "1000"], process_group=0, stdout=subprocess.DEVNULL)
print(rank.pid, flush=True)
"""


@pytest.fixture
def orphan() -> Iterator[tuple[int, psutil.Process]]:
    """A session whose leader is gone, and a process of it in a group of its own, as a rank is."""
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER], stdout=subprocess.PIPE, start_new_session=True
    )
    assert leader.stdout is not None
    with leader.stdout:
        rank = psutil.Process(int(leader.stdout.readline()))
    leader.wait()
    yield leader.pid, rank
    with contextlib.suppress(psutil.NoSuchProcess):
        rank.kill()


def test_chaos_sees_a_rank_that_its_campaign_has_left_behind(orphan):
    leader, rank = orphan
    assert of_session(leader) == [rank]


def test_chaos_kills_the_ranks_where_it_says_so(orphan):
    leader = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    _, rank = orphan
    session = SimpleNamespace(process=leader, _ranks=lambda: [rank])
    Session.end(session, "killed with all ranks", random.Random(1))
    assert leader.wait() == -signal.SIGKILL
    assert psutil.wait_procs([rank], timeout=10)[1] == []


@pytest.mark.slow
def test_a_campaign_survives_a_minute_of_chaos():
    script = Path(__file__).parents[2] / "benchmarks" / "chaos.py"
    options = ["--time", "60s", "--kill-every", "20s", "--disturb-every", "5s", "--json"]
    result = subprocess.run(
        [sys.executable, str(script), *options], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["wrong"] == []
