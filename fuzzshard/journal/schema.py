"""The tables of a journal, and opening it.

Write-ahead logging: a process that is killed loses at most the transaction that it was in, readers
never wait, and with ``synchronous=NORMAL`` a power cut loses the last transactions but never the
file (https://www.sqlite.org/wal.html). It needs shared memory, so the directory must not be on a
network file system.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from fuzzshard.errors import InfraError, InvalidJournal

FORMAT = 3
"""``PRAGMA user_version``. Any other is refused."""
JOURNAL_FILE = "journal.sqlite"

CACHE_KIB = 256
"""Of pages that SQLite keeps. A journal is appended to; the usual 2 MiB take thousands of cases to
fill.
"""

BUSY_SECONDS = 10.0
"""How long to wait for somebody who holds the file, such as a backup."""

_TABLES = """
CREATE TABLE session (             -- one run of the command
  id INTEGER PRIMARY KEY,
  campaign INTEGER NOT NULL,       -- id of the first session of its campaign; its own if first
  continues INTEGER REFERENCES session(id),  -- the session that this one goes on with
  started REAL NOT NULL,           -- unix seconds
  options TEXT NOT NULL,           -- JSON: stream (what decides which cases are drawn) and limits
  seed INTEGER NOT NULL,           -- of the campaign, as asked for or drawn
  stream_seed INTEGER NOT NULL,    -- from the seed and the number of this session in its campaign
  version TEXT NOT NULL,           -- of fuzzshard
  host TEXT NOT NULL, pid INTEGER NOT NULL,
  world_size INTEGER NOT NULL, worlds INTEGER NOT NULL, device TEXT NOT NULL,
  info TEXT,                       -- JSON: torch, python, device, backend, platform once a world
                                   -- is up
  elapsed REAL NOT NULL DEFAULT 0, -- seconds, kept current
  last_new REAL NOT NULL DEFAULT 0, -- elapsed when a feature or a finding was new, kept
                                   -- current
  ended REAL,                      -- unix seconds; NULL while it runs and after a kill, like the
                                   -- next two
  reason TEXT, exit_code INTEGER,
  complete INTEGER NOT NULL DEFAULT 0  -- 1: a limit was reached or all cases were run; nothing to
                                       -- continue
);
CREATE TABLE case_run (
  id INTEGER PRIMARY KEY,
  session INTEGER NOT NULL REFERENCES session(id),
  number INTEGER NOT NULL,         -- index in the stream of the session
  world INTEGER NOT NULL,
  began REAL NOT NULL,             -- seconds into the session
  status TEXT,                     -- NULL: in flight, or cut off
  seconds REAL, signature TEXT, message TEXT
);
CREATE INDEX case_run_status ON case_run(session, status);
CREATE TABLE first_seen (          -- growth of coverage, in the campaign
  feature TEXT NOT NULL, case_run INTEGER NOT NULL REFERENCES case_run(id)
);
CREATE TABLE compared (            -- each engine that a judged case was drawn with
  case_run INTEGER NOT NULL REFERENCES case_run(id),
  engine TEXT NOT NULL,
  rung TEXT NOT NULL,              -- how it was compared; or why it was not
  tensors INTEGER NOT NULL,        -- that were compared, on all ranks
  skipped INTEGER NOT NULL         -- that differ, and may have any value
);
CREATE TABLE event (               -- append-only; all but phases, progress of shrinking, and cases
  id INTEGER PRIMARY KEY,
  session INTEGER NOT NULL REFERENCES session(id),
  world INTEGER NOT NULL, elapsed REAL NOT NULL,  -- seconds into the session
  kind TEXT NOT NULL, body TEXT NOT NULL          -- the tag of the event; its JSON
);
CREATE INDEX event_kind ON event(session, kind);
"""


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Opens the journal at ``path``; without ``read_only`` one is made where there is none.

    Raises :class:`InvalidJournal` for a file that is damaged, of another format, or no journal,
    and :class:`InfraError` for one that cannot be opened or written. Neither changes it.
    """
    with one_line(path):
        connection = sqlite3.connect(
            _uri(path, read_only), uri=True, timeout=BUSY_SECONDS, isolation_level=None
        )
        try:
            has_tables = _check_format(connection, path)
            if read_only and not has_tables:
                raise InvalidJournal(f"{path} is empty", "move it away or use another --corpus")
            if not read_only:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
                if not has_tables:
                    with transaction(connection):
                        for statement in filter(str.strip, _TABLES.split(";\n")):
                            connection.execute(statement)
                        connection.execute(f"PRAGMA user_version = {FORMAT}")
        except BaseException:
            connection.close()
            raise
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Write all or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back where the disk is full
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextlib.contextmanager
def one_line(path: Path) -> Iterator[None]:
    """Makes one line of whatever SQLite says about the journal at ``path``."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) in (
            sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_NOTADB,
            sqlite3.SQLITE_ERROR,  # no such table, malformed JSON
        ):
            raise InvalidJournal(
                f"{path} is damaged: {error}",
                "move it away (saved findings stay known) or use another --corpus; nothing was "
                "changed",
            ) from None
        raise InfraError(
            f"cannot use the journal {path}: {error}",
            "make room there or allow writing, and run the same command again: it goes on",
        ) from None


def _uri(path: Path, read_only: bool) -> str:
    """Return a closed journal in a folder that cannot be written is read as it is: no lock can be
    put there.
    """
    where = quote(str(path.resolve()))
    if not read_only:
        return f"file:{where}?mode=rwc"
    closed = not path.with_name(f"{path.name}-wal").exists()
    return f"file:{where}?mode=ro" + (
        "&immutable=1" if closed and not os.access(path.parent, os.W_OK) else ""
    )


def _check_format(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the tables are there; raises :class:`InvalidJournal` for a format that is
    none of ours.
    """
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not found and tables:
        raise InvalidJournal(f"{path} is no journal of a campaign", "use another --corpus")
    if tables and found != FORMAT:
        raise InvalidJournal(
            f"{path} has format {found}, and this fuzzshard reads {FORMAT}",
            "install the fuzzshard that wrote it or use another --corpus",
        )
    return bool(tables)
