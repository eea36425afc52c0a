"""The status of campaigns that share an exchange, as each of them tells it there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from fuzzshard.campaign.exchange import Condition, NodeSeen, read_nodes
from fuzzshard.corpus.files import read_regular
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.store import NODE_FILE, STATS_FILE
from fuzzshard.report.lines import counts_text
from fuzzshard.report.node import node_of_entries
from fuzzshard.report.seen_findings import SeenFinding, seen_findings
from fuzzshard.report.stages import clock, counted
from fuzzshard.report.stats import Stats
from fuzzshard.report.status import FindingStatus, finding_lines, finding_states


class CampaignStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One campaign: what it says of itself, ``silent`` seconds ago, and its figures, if it has
    told any.
    """

    name: str
    condition: Condition
    host: str
    pid: int
    corpus: str
    works_on: tuple[str, ...]
    ended: str
    silent: float
    stats: Stats | None


class ExchangeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What ``fuzzshard status EXCHANGE --json`` prints. The rate is that of what runs."""

    campaigns: tuple[CampaignStatus, ...]
    cases: int
    cases_per_second: float
    verdicts: dict[str, int]
    findings: tuple[FindingStatus, ...]


def is_exchange(directory: Path) -> bool:
    """Return whether campaigns share ``directory``."""
    return any(directory.glob(f"*/{NODE_FILE}"))


def read_exchange(exchange: Path) -> tuple[ExchangeStatus, list[SeenFinding]]:
    """Return what all campaigns of ``exchange`` have told so far."""
    nodes = read_nodes(exchange, time.time())
    entries, _ = load([exchange], follow=False)
    told = [
        node_of_entries(
            node.folder,
            [item for item in entries if item.file.is_relative_to(node.folder)],
            shared=exchange,
        )
        for node in nodes
    ]
    for sighting in (sighting for node in told for sighting in node.sightings):
        sighting.found = True
    findings = list(seen_findings(told))
    campaigns = tuple(_campaign(exchange, node) for node in nodes)
    figures = [campaign.stats for campaign in campaigns if campaign.stats is not None]
    status = ExchangeStatus(
        campaigns=campaigns,
        cases=sum(stats.cases for stats in figures),
        cases_per_second=sum(
            campaign.stats.cases_per_second
            for campaign in campaigns
            if campaign.stats is not None and campaign.condition == "running"
        ),
        verdicts=dict(sum((Counter(stats.verdicts) for stats in figures), Counter[str]())),
        findings=finding_states(findings),
    )
    return status, findings


def exchange_lines(
    exchange: Path, status: ExchangeStatus, findings: Sequence[SeenFinding]
) -> Iterator[str]:
    """Yield each campaign, the sum, and a line for each distinct finding."""
    conditions = Counter(campaign.condition for campaign in status.campaigns)
    parts = [f"{count} {condition}" for condition, count in sorted(conditions.items())]
    yield f"{exchange}: {counted(len(status.campaigns), 'campaign')}, {', '.join(parts)}"
    for campaign in status.campaigns:
        yield f"{campaign.name}: {_line(campaign)}"
    yield f"cases     {status.cases}, now {status.cases_per_second:.2f} per second"
    yield f"verdicts  {counts_text(status.verdicts)}"
    yield f"findings  {len(findings)} distinct"
    yield from finding_lines(findings)


def _campaign(exchange: Path, node: NodeSeen) -> CampaignStatus:
    try:
        data = read_regular(node.folder / STATS_FILE, below=exchange)
        stats = msgspec.json.decode(data, type=Stats)
    except (OSError, msgspec.MsgspecError):
        stats = None
    state = node.state
    return CampaignStatus(
        name=node.name,
        condition=node.condition,
        host=state.host,
        pid=state.pid,
        corpus=state.corpus,
        works_on=tuple(state.claims),
        ended=state.ended,
        silent=node.silent,
        stats=stats,
    )


def _line(campaign: CampaignStatus) -> str:
    if campaign.condition == "ended":
        said = f"ended: {campaign.ended}"
    elif campaign.condition == "running":
        said = f"running: process {campaign.pid} on {campaign.host}"
    else:
        silent = clock(campaign.silent)
        said = f"lost: silent for {silent}; the same command on {campaign.host} goes on with it"
    if (stats := campaign.stats) is not None:
        said += f"; {stats.cases} cases, {stats.cases_per_second:.2f} per second"
        said += f", {stats.new_findings} new"
    works_on = f"; works on {', '.join(campaign.works_on)}" if campaign.works_on else ""
    return f"{said}{works_on}"
