"""The figures of a campaign, in one struct: what ``stats.json`` holds and ``fuzzshard status``
prints.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from fuzzshard.analysis.features import ALL_FEATURES
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.store import STATS_FILE
from fuzzshard.errors import worst_exit_code
from fuzzshard.events import CampaignFinished, Event
from fuzzshard.journal.history import SessionRow
from fuzzshard.report.comparisons import Comparisons, comparisons
from fuzzshard.report.node import CampaignNode, is_running, read_node
from fuzzshard.report.seen_findings import SeenFinding, seen_findings
from fuzzshard.verdict import Status

SECONDS_BETWEEN = 10.0

State = Literal["running", "ended", "killed", "saved"]


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one directory, or the sum of several that ran side by side.

    ``seconds`` is how long the campaign ran, the longest of several; rates add up. ``findings``
    are distinct confirmed ones, of which the corpus did not have ``new_findings``;
    ``inconclusive`` ones did not come back. ``causes`` counts cases that known bugs of torch
    caused, by the name of the mend. ``compared`` says how each engine was compared, and ``all`` of
    them. ``seconds_since_new_feature`` is campaign time.
    """

    updated: float
    directories: int
    state: State
    reason: str
    exit_code: int | None
    sessions: int
    seconds: float
    cases: int
    cases_per_second: float
    verdicts: dict[str, int]
    findings: int
    new_findings: int
    hits: int
    causes: dict[str, int]
    compared: dict[str, Comparisons]
    inconclusive: int
    features_seen: int
    features_total: int
    seconds_since_new_feature: float


def stats_of(nodes: Sequence[CampaignNode], findings: Sequence[SeenFinding]) -> Stats:
    """Return the sum of ``nodes``, of which there is at least one, and whose findings are
    ``findings``.
    """
    verdicts = sum((node.verdicts for node in nodes), Counter[str]())
    cases = verdicts.total()
    seconds = max(node.seconds for node in nodes)
    return Stats(
        updated=time.time(),
        directories=len(nodes),
        state=state_of(nodes),
        reason="; ".join(dict.fromkeys(last.reason for last in _last(nodes) if last.reason)),
        exit_code=exit_code_of(nodes),
        sessions=sum(len(node.sessions) for node in nodes),
        seconds=seconds,
        cases=cases,
        cases_per_second=sum(
            node.verdicts.total() / node.seconds if node.seconds else 0.0 for node in nodes
        ),
        verdicts={status.value: verdicts[status] for status in Status if verdicts[status]},
        findings=sum(finding.confirmed for finding in findings),
        new_findings=sum(finding.confirmed and finding.new for finding in findings),
        hits=sum(finding.hits for finding in findings),
        causes=dict(sum((node.causes for node in nodes), Counter[str]()).most_common()),
        compared=comparisons(row for node in nodes for row in node.compared),
        inconclusive=sum(finding.status == "inconclusive" for finding in findings),
        features_seen=len({name for node in nodes for name in node.first_seen}),
        features_total=len(ALL_FEATURES),
        seconds_since_new_feature=min(
            node.seconds - max(node.first_seen.values(), default=0.0) for node in nodes
        ),
    )


def state_of(nodes: Sequence[CampaignNode]) -> State:
    """Return running where one of them is; killed where a session has no end and no process; saved
    where none has begun.
    """
    sessions = _last(nodes)
    if not sessions:
        return "saved"
    if any(map(is_running, sessions)):
        return "running"
    return "ended" if all(session.ended is not None for session in sessions) else "killed"


def _last(nodes: Sequence[CampaignNode]) -> list[SessionRow]:
    return [node.last for node in nodes if node.last is not None]


def exit_code_of(nodes: Sequence[CampaignNode]) -> int | None:
    """Return the worst of the newest sessions; None while one is open, and without any."""
    codes = [session.exit_code for session in _last(nodes)]
    ended = [code for code in codes if code is not None]
    return worst_exit_code(ended) if ended and len(ended) == len(codes) else None


def stats_writer(
    directory: Path, *, clock: Callable[[], float] = time.monotonic
) -> PeriodicWriter:
    """Return an event sink that keeps ``stats.json`` in ``directory`` current."""
    return PeriodicWriter(
        STATS_FILE, lambda: write_stats(directory), seconds=SECONDS_BETWEEN, clock=clock
    )


def write_stats(directory: Path) -> Stats:
    """Replaces ``stats.json`` in ``directory`` by what its journal says now."""
    node = read_node(directory)
    stats = stats_of([node], seen_findings([node]))
    write_atomic(
        directory / STATS_FILE, msgspec.json.format(msgspec.json.encode(stats), indent=2) + b"\n"
    )
    return stats


_MOST_SHARE = 0.02
"""Of the time of a campaign, for writing one file: a journal of millions of cases is read more
rarely.
"""


class PeriodicWriter:
    """An event sink that calls ``write`` at the first event, at the last one, and at most every
    ``seconds`` between. What ``write`` reads in the journal must be written there before.

    What is wrong with the file, ``name``, must not end a campaign of weeks: it is said once, on
    stderr.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[], object],
        *,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._write = write
        self._seconds = seconds
        self._clock = clock
        self._due = 0.0
        self._failed = False

    def __call__(self, event: Event) -> None:
        """Writes if it is time."""
        began = self._clock()
        if self._failed or (began < self._due and not isinstance(event, CampaignFinished)):
            return
        try:
            self._write()
        except Exception as error:
            self._failed = True
            print(f"fuzzshard: {self._name} is not written any more: {error}", file=sys.stderr)
        took = self._clock() - began
        self._due = began + max(self._seconds, took / _MOST_SHARE)
