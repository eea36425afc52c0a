"""Reads a journal: what a session that goes on with another one needs, and what is shown of a
campaign.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fuzzshard.errors import FuzzshardError, InvalidJournal
from fuzzshard.events import AnyEvent
from fuzzshard.journal.schema import connect, one_line
from fuzzshard.printable import all_printable, printable

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
"""What is drawn over time has to have an end."""


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the command; the columns of the table, with ``options`` and ``info`` decoded."""

    id: int
    campaign: int
    continues: int | None
    started: Seconds
    options: dict[str, dict[str, Any]]
    seed: int
    stream_seed: int
    version: str
    host: str
    pid: int
    world_size: int
    worlds: int
    device: str
    info: dict[str, str] | None
    elapsed: Seconds
    last_new: Seconds
    ended: Seconds | None
    reason: str | None
    exit_code: int | None
    complete: bool


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the journal; ``elapsed`` is in seconds into its session."""

    session: int
    elapsed: float
    event: AnyEvent


class History:
    """A journal that is open. What is read from its file is printable, and every method raises
    :class:`fuzzshard.errors.InvalidJournal` for a damaged one.

    A *campaign* is named by the id of its first session.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection | None = None) -> None:
        self._path = path
        self._owned = connection is None
        self._connection = connection or connect(path, read_only=True)
        if self._owned:
            self._connection.text_factory = _text

    def __enter__(self) -> History:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Make one line of whatever is wrong with what was read: SQLite keeps any value in any
        column.
        """
        if self._owned:
            self._connection.close()
            if isinstance(error, Exception) and not isinstance(error, FuzzshardError):
                raise self._damaged(error) from error

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of any query, for what has no method here."""
        with one_line(self._path):
            return self._connection.execute(query, values).fetchall()

    def sessions(self, campaign: int | None = None) -> list[SessionRow]:
        """Return all sessions, or those of one campaign, oldest first."""
        columns = ", ".join(SessionRow.__struct_fields__)
        where = "" if campaign is None else f"WHERE campaign = {campaign:d}"
        return [
            self._decoded(dict(zip(SessionRow.__struct_fields__, row, strict=True)))
            for row in self.rows(f"SELECT {columns} FROM session {where} ORDER BY id")
        ]

    def _decoded(self, columns: dict[str, Any]) -> SessionRow:
        try:
            for name in ("options", "info"):
                columns[name] = columns[name] and msgspec.json.decode(columns[name])
            return msgspec.convert(columns, SessionRow, strict=False)
        except msgspec.MsgspecError as error:
            raise self._damaged(error) from None

    def counts(self, campaign: int) -> Counter[str]:
        """Return judged cases by status."""
        return Counter(
            dict(
                self.rows(
                    "SELECT status, count(*) FROM case_run JOIN session ON session.id = "
                    "case_run.session WHERE campaign = ? AND status IS NOT NULL GROUP BY status",
                    campaign,
                )
            )
        )

    def features(self, campaign: int) -> set[str]:
        """Return the features that some case had."""
        return {
            feature
            for (feature,) in self.rows(
                "SELECT feature FROM first_seen "
                "JOIN case_run ON case_run.id = first_seen.case_run "
                "JOIN session ON session.id = case_run.session WHERE campaign = ?",
                campaign,
            )
        }

    def compared(self) -> list[tuple[str, str, int, int, int]]:
        """Return engine, comparison, judged cases, and the tensors that were compared and skipped
        in them, of all campaigns.
        """
        return self.rows(
            "SELECT engine, rung, count(*), sum(tensors), sum(skipped) FROM compared "
            "GROUP BY engine, rung"
        )

    def events(self, campaign: int, *kinds: str) -> Iterator[Told]:
        """Yield its events in order, or those of ``kinds`` such as ``"finding_saved"``."""
        some = f"AND kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        for session, elapsed, body in self.rows(
            "SELECT session, event.elapsed, body FROM event JOIN session ON session.id = "
            f"event.session WHERE campaign = ? {some} ORDER BY event.id",
            campaign,
            *kinds,
        ):
            try:
                event = msgspec.convert(all_printable(msgspec.json.decode(body)), AnyEvent)
            except msgspec.MsgspecError as error:
                raise self._damaged(error) from None
            yield Told(session=session, elapsed=elapsed, event=event)

    def count_by_folder(self, campaign: int, kind: str) -> Counter[str]:
        """Return how many events of one kind name each folder of a finding; for kinds that come
        with every case.
        """
        counts: Counter[str] = Counter()
        for path, count in self.rows(
            "SELECT json_extract(body, '$.path') AS path, count(*) FROM event "
            "JOIN session ON session.id = event.session WHERE campaign = ? AND kind = ? GROUP BY "
            "path",
            campaign,
            kind,
        ):
            counts[Path(path).name] += count
        return counts

    def _damaged(self, error: Exception) -> InvalidJournal:
        said = printable(" ".join(f"{error}".split())) or type(error).__name__
        return InvalidJournal(
            f"{self._path} is damaged: {said}", "move it away or use another --corpus"
        )


def _text(data: bytes) -> str:
    return printable(data.decode(errors="replace"))
