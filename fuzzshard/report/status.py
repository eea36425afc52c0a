"""The status of campaigns as lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from fuzzshard.instruments import off_lines
from fuzzshard.report.comparisons import comparison_lines
from fuzzshard.report.lines import counts_text
from fuzzshard.report.node import CampaignNode, is_running, unreadable
from fuzzshard.report.seen_findings import SeenFinding, seen_findings
from fuzzshard.report.stages import clock, counted
from fuzzshard.report.stats import Stats, stats_of


class DirectoryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One directory of several."""

    path: str
    stats: Stats


class FindingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A distinct finding; ``folders`` are its entries, the one to keep first.

    ``internal``: only an instrument sees it, and no user.
    """

    signature: str
    status: str
    new: bool
    internal: bool
    reproduced: int | None
    runs: int | None
    hits: int
    first_seen: float
    folders: tuple[str, ...]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What ``fuzzshard status --json`` prints."""

    total: Stats
    directories: tuple[DirectoryStatus, ...]
    findings: tuple[FindingStatus, ...]
    unreadable: tuple[str, ...]


def status_json(
    nodes: Sequence[CampaignNode], stats: Stats, findings: Sequence[SeenFinding]
) -> Status:
    """Return everything that :func:`status_lines` says, and more."""
    return Status(
        total=stats,
        directories=tuple(
            DirectoryStatus(path=str(node.path), stats=stats_of([node], seen_findings([node])))
            for node in nodes
        ),
        findings=finding_states(findings),
        unreadable=tuple(map(str, unreadable(nodes))),
    )


def finding_states(findings: Sequence[SeenFinding]) -> tuple[FindingStatus, ...]:
    """Return what JSON says of each."""
    return tuple(
        FindingStatus(
            signature=finding.signature,
            status=finding.status,
            new=finding.new,
            internal=finding.internal,
            reproduced=finding.rate.reproduced if finding.rate else None,
            runs=finding.rate.runs if finding.rate else None,
            hits=finding.hits,
            first_seen=finding.at,
            folders=tuple(str(sighting.folder) for sighting in finding.sightings),
        )
        for finding in findings
    )


def status_lines(
    nodes: Sequence[CampaignNode], stats: Stats, findings: Sequence[SeenFinding]
) -> Iterator[str]:
    """Yield each directory's newest session, the sum, and a line for each finding."""
    for node in nodes:
        yield f"{node.path}: {ending(node)}"
        yield from off_lines(node.last.info or {} if node.last is not None else {})
    if stats.state != "saved":
        yield from _campaign_lines(stats)
    inconclusive = f"{stats.inconclusive} inconclusive"
    seen = f" in {counted(stats.hits, 'case')}" if stats.state != "saved" else ""
    yield f"findings  {stats.findings} distinct{seen}, {stats.new_findings} new, {inconclusive}"
    if stats.causes:
        cases = counted(sum(stats.causes.values()), "case")
        yield f"known     {counted(len(stats.causes), 'bug')} of torch in {cases}"
        yield from (f"  {cases:>5} x {cause}" for cause, cases in stats.causes.items())
    yield from finding_lines(findings)
    if broken := unreadable(nodes):
        yield f"INVALID   {counted(len(broken), 'entry', 'entries')} could not be read:"
        yield from (f"  {error}" for error in broken)


def finding_lines(findings: Sequence[SeenFinding]) -> Iterator[str]:
    """Yield one line for each."""
    width = max((len(finding.status) for finding in findings), default=0)
    for finding in findings:
        yield f"  {finding.status:<{width}}  {finding.signature}{_seen(finding)}: {finding.folder}"


def _campaign_lines(stats: Stats) -> Iterator[str]:
    directories = f"{stats.directories} directories, " if stats.directories > 1 else ""
    sessions = f"{directories}{counted(stats.sessions, 'session')}"
    rate = f"{stats.cases_per_second:.2f} per second"
    yield f"cases     {stats.cases} in {clock(stats.seconds)} ({sessions}), {rate}"
    yield f"verdicts  {counts_text(stats.verdicts)}"
    yield (
        f"coverage  {stats.features_seen} of {stats.features_total} features, the last new one "
        f"{clock(stats.seconds_since_new_feature)} ago"
    )
    if stats.compared:
        yield "compared  shares of the runs of engines that were drawn"
    yield from comparison_lines(stats.compared)


def ending(node: CampaignNode) -> str:
    """Return whether the newest session of a directory runs, and why it ended."""
    session = node.last
    if session is None:
        return "no campaign has run there"
    if session.ended is not None:
        return (
            f"ended after {clock(node.seconds)}: {session.reason} (exit code {session.exit_code})"
        )
    if is_running(session):
        return f"running for {clock(node.seconds)}: process {session.pid} on {session.host}"
    return (
        f"killed after {clock(node.seconds)}, on {session.host}; the same command goes on with it"
    )


def _seen(finding: SeenFinding) -> str:
    rate = f", {finding.rate.reproduced} of {finding.rate.runs} runs" if finding.rate else ""
    nodes = f", {len(finding.sightings)} entries" if len(finding.sightings) > 1 else ""
    known = "" if finding.new else ", known before"
    known += ", internal" if finding.internal else ""
    first = f", {counted(finding.hits, 'case')}, first at {clock(finding.at)}"
    return f"{rate}{first if finding.hits else ''}{nodes}{known}"
