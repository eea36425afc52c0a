"""Writes the journal of one session, event by event."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fuzzshard import __version__
from fuzzshard.events import (
    CampaignFinished,
    CaseJudged,
    CaseStarted,
    Event,
    FindingSaved,
    PhaseChanged,
    ShrinkProgress,
    WorldStarted,
)
from fuzzshard.journal.schema import one_line, transaction

_PASSING = (PhaseChanged, ShrinkProgress, CaseStarted, CaseJudged)
"""Events that have tables of their own, or that nobody asks for later."""


class SessionStart(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a session when it begins.

    ``stream`` and ``limits`` are its options: those that decide which cases are drawn, and when it
    stops. ``elapsed_before`` is the time of the earlier sessions of its campaign.
    """

    stream: Mapping[str, object]
    limits: Mapping[str, object]
    seed: int
    stream_seed: int
    world_size: int
    worlds: int
    device: str
    campaign: int | None = None
    continues: int | None = None
    elapsed_before: float = 0.0


class JournalWriter:
    """An event sink. Each event is one transaction; what it returned from survives the death of
    the process.

    Use it from the thread that opened ``connection``, and close that in the end. Raises
    :class:`fuzzshard.errors.InfraError` once when the disk is full; what comes after that is not
    written.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, start: SessionStart) -> None:
        self._path = path
        self._connection = connection
        self._before = start.elapsed_before
        self._broken = False
        self._case_runs: dict[int, int] = {}
        with one_line(path), transaction(connection):
            self.session = self._begin(start)

    def record(self, event: Event) -> None:
        """Takes one event."""
        if self._broken:
            return
        try:
            with one_line(self._path), transaction(self._connection):
                self._write(event, max(0.0, event.elapsed - self._before))
        except BaseException:
            self._broken = True
            raise

    def _begin(self, start: SessionStart) -> int:
        options = json.dumps({"stream": dict(start.stream), "limits": dict(start.limits)})
        cursor = self._connection.execute(
            "INSERT INTO session (campaign, continues, started, options, seed, stream_seed, "
            "version, host, pid, world_size, worlds, device) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, "
            "?, ?, ?)",
            (
                start.campaign or 0,
                start.continues,
                time.time(),
                options,
                start.seed,
                start.stream_seed,
                __version__,
                socket.gethostname(),
                os.getpid(),
                start.world_size,
                start.worlds,
                start.device,
            ),
        )
        assert cursor.lastrowid is not None
        self._connection.execute("UPDATE session SET campaign = id WHERE campaign = 0")
        return cursor.lastrowid

    def _write(self, event: Event, elapsed: float) -> None:
        self._connection.execute(
            "UPDATE session SET elapsed = ? WHERE id = ?", (elapsed, self.session)
        )
        match event:
            case CaseStarted():
                self._write_started(event, elapsed)
            case CaseJudged():
                self._write_judged(event, elapsed)
            case WorldStarted():
                info = json.dumps(event.info)
                self._connection.execute(
                    "UPDATE session SET info = ? WHERE id = ?", (info, self.session)
                )
            case FindingSaved(duplicate=False):
                self._note_new(elapsed)
            case CampaignFinished():
                self._connection.execute(
                    "UPDATE session SET ended = ?, reason = ?, exit_code = ?, complete = ? WHERE "
                    "id = ?",
                    (time.time(), event.reason, event.exit_code, event.complete, self.session),
                )
            case _:
                pass
        if not isinstance(event, _PASSING):
            body = msgspec.json.encode(event).decode()
            self._connection.execute(
                "INSERT INTO event (session, world, elapsed, kind, body) VALUES (?, ?, ?, ?, ?)",
                (self.session, event.world, elapsed, type(event).__struct_config__.tag, body),
            )

    def _write_started(self, event: CaseStarted, elapsed: float) -> None:
        cursor = self._connection.execute(
            "INSERT INTO case_run (session, number, world, began) VALUES (?, ?, ?, ?)",
            (self.session, event.index, event.world, elapsed),
        )
        assert cursor.lastrowid is not None
        self._case_runs[event.index] = cursor.lastrowid

    def _write_judged(self, event: CaseJudged, elapsed: float) -> None:
        """The verdict, with what it was the first to have: coverage adds up at any moment."""
        case_run = self._case_runs.pop(event.index)
        execute, executemany = self._connection.execute, self._connection.executemany
        execute(
            "UPDATE case_run SET status = ?, seconds = ?, signature = ?, message = ? WHERE id = ?",
            (event.status.value, event.seconds, event.signature, event.message, case_run),
        )
        executemany(
            "INSERT INTO first_seen (feature, case_run) VALUES (?, ?)",
            [(name, case_run) for name in event.new_features],
        )
        executemany(
            "INSERT INTO compared (case_run, engine, rung, tensors, skipped) "
            "VALUES (?, ?, ?, ?, ?)",
            [
                (case_run, engine, how.comparison, how.tensors, how.skipped)
                for engine, how in event.compared.items()
            ],
        )
        if event.new_features:
            self._note_new(elapsed)

    def _note_new(self, elapsed: float) -> None:
        self._connection.execute(
            "UPDATE session SET last_new = ? WHERE id = ?", (elapsed, self.session)
        )
