"""One directory, as the journal of its campaign tells it, or else as its entries do: what all
views are made from.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.distinct import Stored
from fuzzshard.corpus.entry import Confirmation, CorpusEntry
from fuzzshard.corpus.store import (
    CASE_FILE,
    FINDINGS_FOLDER,
    INCONCLUSIVE_FOLDER,
    entry_files,
)
from fuzzshard.errors import InvalidEntry, UsageError
from fuzzshard.events import (
    FindingFlaky,
    FindingFound,
    FindingSaved,
)
from fuzzshard.journal.history import History, SessionRow
from fuzzshard.journal.schema import JOURNAL_FILE
from fuzzshard.report.comparisons import EngineRuns
from fuzzshard.verdict import Status

SILENT_SECONDS = 600.0
"""A session on another machine that has written nothing for as long counts as killed."""


_CAUSES = (
    "SELECT cause.value, count(*) FROM event, json_each(event.body, '$.causes') AS cause "
    "WHERE kind = 'known_cause' GROUP BY cause.value"
)


@dataclasses.dataclass
class Sighting:
    """What this directory's campaign saw of one finding, from the campaign time ``at`` on.

    ``found``: it was no hit of one that the corpus had. ``rate`` is that of its minimal case.
    """

    signature: str
    folder: Path
    at: float
    found: bool = False
    summary: str = ""
    rate: Confirmation | None = None
    hits: int = 0
    flaky: bool = False


@dataclasses.dataclass(frozen=True)
class CampaignNode:
    """All sessions in one directory, one after another; none where no campaign has run.

    ``first_seen`` has the time of each feature; times are in seconds during which the campaign
    ran. ``causes`` counts the cases that known bugs of torch caused, by the name of the mend.
    ``compared`` says how engines were compared. No links under ``shared`` are followed, a folder
    that others write to as well.
    """

    path: Path
    sessions: tuple[SessionRow, ...]
    verdicts: Counter[str]
    first_seen: Mapping[str, float]
    sightings: tuple[Sighting, ...]
    causes: Counter[str]
    compared: tuple[EngineRuns, ...]
    shared: Path | None = None

    @property
    def seconds(self) -> float:
        """How long the campaign has run."""
        return sum(session.elapsed for session in self.sessions)

    @property
    def last(self) -> SessionRow | None:
        """The newest session."""
        return self.sessions[-1] if self.sessions else None


def read_node(directory: Path) -> CampaignNode:
    """Reads a directory.

    Raises :class:`InvalidJournal` for a journal that is damaged, and :class:`UsageError` for a
    directory that has neither a campaign nor a finding.
    """
    journal = directory / JOURNAL_FILE
    if journal.is_file():
        with History(journal) as history:
            node = node_of(directory, history)
        if node.sessions:
            return node
    node = node_without_campaign(directory)
    if not node.sightings:
        for broken in unreadable([node]):
            raise broken
        raise UsageError(
            f"{directory} has neither a campaign nor a finding",
            "give a corpus, or the --corpus of a fuzzshard run",
        )
    return node


def node_without_campaign(directory: Path) -> CampaignNode:
    """Return a corpus without a journal: entries that were merged or committed."""
    files = entry_files([directory])
    return node_of_entries(
        directory, (Stored(f, directory, e) for f in files if (e := entry_at(f)))
    )


def node_of_entries(
    directory: Path, stored: Iterable[Stored], *, shared: Path | None = None
) -> CampaignNode:
    """Return a ``directory`` with these entries, which no case of a journal showed."""
    return CampaignNode(
        path=directory,
        shared=shared,
        sessions=(),
        verdicts=Counter(),
        first_seen={},
        sightings=tuple(
            Sighting(
                item.entry.signature,
                item.file.parent,
                at=0.0,
                rate=item.entry.confirmed,
                flaky=item.entry.status is Status.INCONCLUSIVE,
            )
            for item in stored
            if item.entry.signature and item.file.name == CASE_FILE
        ),
        causes=Counter(),
        compared=(),
    )


def entry_at(file: Path, shared: Path | None = None) -> CorpusEntry | None:
    """Return the entry in ``file``, None where it was moved or changed meanwhile."""
    try:
        return _read(file, shared, file.stat().st_mtime_ns)
    except (InvalidEntry, OSError):
        return None


@functools.lru_cache(maxsize=2000)
def _read(file: Path, shared: Path | None, _modified: int) -> CorpusEntry:
    """Figures are written every few seconds, and entries change rarely."""
    return read_entry(file, below=shared)


def unreadable(nodes: Iterable[CampaignNode]) -> list[InvalidEntry]:
    """Return what is wrong with each entry of ``nodes`` that cannot be read."""
    found = []
    for node in nodes:
        folder = node.path / FINDINGS_FOLDER if node.sessions else node.path
        for file in entry_files([folder] if folder.exists() else ()):
            try:
                _read(file, node.shared, file.stat().st_mtime_ns)
            except InvalidEntry as error:
                found.append(error)
            except OSError:  # it is gone by now
                pass
    return found


def node_of(directory: Path, history: History) -> CampaignNode:
    """Return what ``history`` says of the campaign in ``directory``."""
    sessions = tuple(history.sessions())
    begins = begin_times(sessions)
    verdicts = history.rows(
        "SELECT status, count(*) FROM case_run WHERE status IS NOT NULL GROUP BY session, status"
    )
    counts: Counter[str] = Counter()
    for status, count in verdicts:
        counts[status] += count
    return CampaignNode(
        path=directory,
        sessions=sessions,
        verdicts=counts,
        first_seen=_first_seen(history, begins),
        sightings=_sightings(directory, history, sessions, begins),
        causes=Counter(dict(history.rows(_CAUSES))),
        compared=tuple(itertools.starmap(EngineRuns, history.compared())),
    )


def begin_times(sessions: tuple[SessionRow, ...]) -> dict[int, float]:
    """Return for each session, by id, how long the campaign had run when it began."""
    begins, total = {}, 0.0
    for session in sessions:
        begins[session.id] = total
        total += session.elapsed
    return begins


def is_running(session: SessionRow) -> bool:
    """Return whether a process still writes to ``session``; of another machine only its silence is
    known.
    """
    if session.ended is not None:
        return False
    if session.host == socket.gethostname():
        try:
            return bool(psutil.Process(session.pid).create_time() <= session.started)
        except psutil.NoSuchProcess:
            return False
    return time.time() - (session.started + session.elapsed) < SILENT_SECONDS


def _first_seen(history: History, begins: Mapping[int, float]) -> dict[str, float]:
    """A session that begins a campaign anew sees everything again; the first time counts."""
    seen: dict[str, float] = {}
    for feature, session, began in history.rows(
        "SELECT feature, session, began FROM first_seen "
        "JOIN case_run ON case_run.id = first_seen.case_run ORDER BY case_run.id"
    ):
        seen.setdefault(feature, begins[session] + began)
    return seen


def _sightings(
    directory: Path,
    history: History,
    sessions: tuple[SessionRow, ...],
    begins: Mapping[int, float],
) -> tuple[Sighting, ...]:
    """Return what became of each finding, in the order in which they were seen."""
    seen: dict[str, Sighting] = {}

    def sighting(path: str, signature: str, at: float) -> Sighting:
        name = Path(path).name
        known = seen.setdefault(name, Sighting(signature, directory / FINDINGS_FOLDER / name, at))
        known.at = min(known.at, at)
        return known

    kinds = ("finding_found", "finding_saved", "finding_flaky")
    for campaign in dict.fromkeys(session.campaign for session in sessions):
        for told in history.events(campaign, *kinds):
            at = begins[told.session] + told.elapsed
            match told.event:
                case FindingFound() as event:
                    found = sighting(event.path, event.signature, at)
                    found.hits += not found.found
                    found.found, found.summary = True, event.summary
                case FindingSaved() as event:
                    found = sighting(event.path, event.signature, at)
                    found.hits += event.duplicate
                    if not event.duplicate:
                        rate = Confirmation(
                            runs=event.runs, reproduced=event.reproduced, others=event.others
                        )
                        found.rate = rate
                case FindingFlaky() as event:
                    found = sighting(event.path, event.signature, at)
                    found.flaky, found.folder = (
                        True,
                        directory / INCONCLUSIVE_FOLDER / found.folder.name,
                    )
    for path, signature, session, first, count in history.rows(
        "SELECT json_extract(body, '$.path') AS path, json_extract(body, '$.signature'), session, "
        "min(elapsed), count(*) FROM event WHERE kind = 'finding_hit' GROUP BY session, path "
        "ORDER BY session"
    ):
        sighting(path, signature, begins[session] + first).hits += count
    return tuple(each for each in seen.values() if _is_there(each))


def _is_there(sighting: Sighting) -> bool:
    """Return a finding that was reduced to an entry that there was already left no more than a hit
    of that one.
    """
    kept = sighting.rate is not None or sighting.flaky
    return kept or not sighting.found or sighting.folder.exists()
