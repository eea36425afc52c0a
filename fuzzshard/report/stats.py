"""The figures of a campaign, in one struct: what ``stats.json`` holds and ``fuzzshard status`` prints."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from fuzzshard.campaign.events import CampaignFinished, CampaignStarted, Event
from fuzzshard.case.features import ALL_FEATURES
from fuzzshard.corpus.atomic import write_atomic
from fuzzshard.errors import FuzzshardError
from fuzzshard.report.node import Node, is_running, read_node
from fuzzshard.verdict import Status

STATS_FILE = "stats.json"
SECONDS_BETWEEN = 10.0
_MOST_SHARE = 0.02
"""Of the time of a campaign that writing its figures may take; a journal of millions of cases is read more rarely."""

State = Literal["running", "ended", "killed"]


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one directory, or the sum of several that ran side by side.

    ``seconds`` is how long the campaign ran, the longest of several; rates add up. ``hangs`` and ``crashes``
    count cases, ``findings`` distinct confirmed findings, ``inconclusive`` those that did not come back. ``stability`` is
    the share of the confirming runs, of findings as they were found, that showed the finding again; ``flake_rate``
    the share of those findings that stayed away in at least one. What cannot be known is null.
    ``seconds_since_*`` is campaign time since a case last had a new feature, or a new pair of them.
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
    hits: int
    inconclusive: int
    hangs: int
    crashes: int
    flake_rate: float | None
    stability: float | None
    gpu_seconds_per_case: float | None
    features_seen: int
    features_total: int
    pairs_seen: int
    seconds_since_new_feature: float
    seconds_since_new_pair: float


def stats_of(nodes: Sequence[Node]) -> Stats:
    """The sum of ``nodes``, of which there is at least one."""
    verdicts = sum((node.verdicts for node in nodes), Counter[str]())
    cases = verdicts.total()
    confirmations = [confirmation for node in nodes for confirmation in node.confirmations]
    runs = sum(confirmation.runs for confirmation in confirmations)
    seconds = max(node.seconds for node in nodes)
    gpu_seconds = sum(node.gpu_seconds for node in nodes)
    state = state_of(nodes)
    sightings = [sighting for node in nodes for sighting in node.sightings]
    seen = {key for node in nodes for key in node.first_seen}
    return Stats(
        updated=time.time(),
        directories=len(nodes),
        state=state,
        reason="; ".join(dict.fromkeys(filter(None, (node.last.reason for node in nodes if node.sessions)))),
        exit_code=_worst(nodes),
        sessions=sum(len(node.sessions) for node in nodes),
        seconds=seconds,
        cases=cases,
        cases_per_second=sum(node.verdicts.total() / node.seconds if node.seconds else 0.0 for node in nodes),
        verdicts={status.value: verdicts[status] for status in Status if verdicts[status]},
        findings=len({_kind_of(s.folder.name, s.signature) for s in sightings if s.rate is not None}),
        hits=sum(sighting.hits for sighting in sightings),
        inconclusive=sum(sighting.flaky for sighting in sightings),
        hangs=verdicts[Status.HANG],
        crashes=verdicts[Status.CRASH],
        flake_rate=_share(sum(c.flaky for c in confirmations), len(confirmations)),
        stability=_share(sum(c.reproduced for c in confirmations), runs),
        gpu_seconds_per_case=_share(gpu_seconds, cases) if gpu_seconds else None,
        features_seen=sum(len(key) == 1 for key in seen),
        features_total=len(ALL_FEATURES),
        pairs_seen=sum(len(key) == 2 for key in seen),
        seconds_since_new_feature=min(_since(node, 1) for node in nodes),
        seconds_since_new_pair=min(_since(node, 2) for node in nodes),
    )
