from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from case_runs import case_runs

from fuzzshard import events
from fuzzshard.analysis.features import ALL_FEATURES
from fuzzshard.errors import InfraError, InvalidJournal
from fuzzshard.journal.history import History
from fuzzshard.journal.schema import FORMAT, JOURNAL_FILE, connect
from fuzzshard.journal.writer import JournalWriter, SessionStart
from fuzzshard.verdict import Status

A, B, C = sorted(ALL_FEATURES)[:3]


def start(**changes: object) -> SessionStart:
    fixed = {"stream": {"engines": ["ddp"]}, "limits": {}, "seed": 7, "stream_seed": 7}
    return SessionStart(**{**fixed, "world_size": 2, "worlds": 1, "device": "cpu", **changes})


def writer(path: Path, **changes: object) -> JournalWriter:
    return JournalWriter(path, connect(path), start(**changes))


def judge(
    journal: JournalWriter, index: int, *, status: Status = Status.PASS, world: int = 0, new=()
) -> None:
    at = {"world": world, "elapsed": 10.0 + index}
    journal.record(events.CaseStarted(index=index, **at))
    judged = events.CaseJudged(index=index, status=status, seconds=0.5, new_features=new, **at)
    journal.record(judged)


def test_a_journal_holds_what_was_recorded(tmp_path):
    path = tmp_path / JOURNAL_FILE
    journal = writer(path)
    journal.record(events.WorldStarted(info={"torch": "2.13.0"}, elapsed=1.0))
    judge(journal, 0, new=(A, B))
    judge(journal, 1, status=Status.REJECTED)
    judge(journal, 2, status=Status.REJECTED, world=1)
    journal.record(events.CaseStarted(index=3, elapsed=20.0))
    journal.record(
        events.FindingHit(index=2, signature="s", path="x/findings/slug", hits=2, elapsed=21.0)
    )
    journal.record(
        events.FindingHit(index=2, signature="s", path="findings/slug", hits=3, elapsed=21.0)
    )
    journal.record(events.PhaseChanged(phase="running", elapsed=22.0))
    with History(path) as history:  # while it is being written
        (session,) = history.sessions()
        assert (session.seed, session.info, session.elapsed) == (7, {"torch": "2.13.0"}, 22)
        assert (session.reason, session.exit_code, session.complete, session.last_new) == (
            None,
            None,
            False,
            10,
        )
        assert history.counts(session.campaign) == {"PASS": 1, "REJECTED": 2}
        assert history.features(session.campaign) == {A, B}
        assert history.count_by_folder(session.campaign, "finding_hit") == {"slug": 2}
        kinds = [type(told.event) for told in history.events(session.campaign)]
        assert kinds == [events.WorldStarted, events.FindingHit, events.FindingHit]
        runs = list(case_runs(history, session.campaign))
        assert [(run.number, run.world, run.status) for run in runs] == [
            (0, 0, "PASS"),
            (1, 0, "REJECTED"),
            (2, 1, "REJECTED"),
            (3, 0, None),
        ]


def test_sessions_of_one_campaign_add_up_and_another_campaign_does_not(tmp_path):
    path = tmp_path / JOURNAL_FILE
    first = writer(path)
    judge(first, 0, new=(A,))
    second = writer(path, campaign=first.session, continues=first.session, elapsed_before=10.0)
    judge(second, 0, new=(B,))
    other = writer(path)
    judge(other, 0, new=(C,))
    with History(path) as history:
        assert [s.id for s in history.sessions(first.session)] == [first.session, second.session]
        assert [s.elapsed for s in history.sessions(first.session)] == [10.0, 0.0]
        assert history.counts(first.session) == {"PASS": 2}
        assert history.features(first.session) == {A, B}
        assert history.features(other.session) == {C}


def test_the_end_of_a_session_is_in_its_row(tmp_path):
    path = tmp_path / JOURNAL_FILE
    connection = connect(path)
    journal = JournalWriter(path, connection, start())
    counts: dict = {
        "cases": 0,
        "cases_per_second": 0.0,
        "counts": {},
        "findings": (),
    }
    seen: dict = {"features_seen": 0, "features_total": 0, "features_unseen": ()}
    finished = events.CampaignFinished(
        reason="time is up",
        exit_code=0,
        seed=7,
        unresolved=(),
        complete=True,
        **counts,
        **seen,
    )
    journal.record(finished)
    connection.close()
    assert not path.with_name(f"{JOURNAL_FILE}-wal").exists()
    with History(path) as history:
        (session,) = history.sessions()
        assert (session.reason, session.exit_code, session.complete) == ("time is up", 0, True)
        assert [told.event for told in history.events(session.id, "campaign_finished")] == [
            finished
        ]


def test_a_new_finding_is_something_new_and_a_duplicate_is_not(tmp_path):
    saved: dict = {
        "signature": "s",
        "path": "p",
        "replay_command": "",
        "script": "",
        "script_fails": True,
    }
    saved |= {"leaves_before": 1, "leaves_after": 1, "runs": 3, "reproduced": 3}
    saved |= {"shrink_evaluations": 0, "shrink_finished": True}
    path = tmp_path / JOURNAL_FILE
    journal = writer(path)
    journal.record(events.FindingSaved(elapsed=5.0, **saved))
    journal.record(events.FindingSaved(elapsed=6.0, duplicate=True, **saved))
    with History(path) as history:
        assert history.sessions()[0].last_new == 5.0


@pytest.mark.parametrize(
    "content", [b"not a database at all", b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_damaged_journal_is_refused_in_one_line_and_left_as_it_is(tmp_path, content):
    path = tmp_path / JOURNAL_FILE
    path.write_bytes(content)
    with pytest.raises(InvalidJournal, match=r"damaged.*move it away") as caught:
        connect(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_journal_cut_short_is_refused_by_whoever_reads_it(tmp_path):
    path = tmp_path / JOURNAL_FILE
    connection = connect(path)
    journal = JournalWriter(path, connection, start())
    for index in range(50):
        judge(journal, index)
    connection.close()
    path.write_bytes(path.read_bytes()[:-8192])
    with pytest.raises(InvalidJournal, match="damaged"):
        History(path).counts(1)


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_a_journal_of_another_format_is_refused(tmp_path, other):
    path = tmp_path / JOURNAL_FILE
    connect(path).execute(f"PRAGMA user_version = {other}").connection.close()
    with pytest.raises(InvalidJournal, match=f"format {other}, and this fuzzshard reads {FORMAT}"):
        connect(path)


def test_a_foreign_database_is_refused(tmp_path):
    foreign = tmp_path / "foreign.sqlite"
    sqlite3.connect(foreign).execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(InvalidJournal, match="no journal"):
        connect(foreign)


def test_a_folder_that_cannot_hold_a_journal_is_the_machines_fault(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InfraError, match="cannot use the journal"):
        connect(tmp_path / "file" / JOURNAL_FILE)


def test_a_full_disk_is_said_once_and_what_was_written_stays(tmp_path):
    path = tmp_path / JOURNAL_FILE
    connection = connect(path)
    journal = JournalWriter(path, connection, start())
    judge(journal, 0)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")

    def judge_many() -> None:
        for index in range(1, 1000):
            judge(journal, index)

    with pytest.raises(InfraError, match="full"):
        judge_many()
    journal.record(events.CaseStarted(index=1000))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with History(path) as history:
        assert history.counts(journal.session)["PASS"] > 0
