"""The report as one HTML file: everything that it shows is in it, and it asks for nothing."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import jinja2

from fuzzshard import __version__
from fuzzshard.analysis.feature_names import FEATURES
from fuzzshard.corpus.causes import issue_name
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.listing import component_rank, severity_rank
from fuzzshard.corpus.store import PAGE_FILE
from fuzzshard.instruments import off_lines
from fuzzshard.journal.history import SessionRow
from fuzzshard.mending.mend import own_mends
from fuzzshard.parts.oracle import Severity
from fuzzshard.report.comparisons import HEADS, comparison_rows
from fuzzshard.report.html.cards import by_cause, cards, releases
from fuzzshard.report.node import CampaignNode, is_running, read_node, unreadable
from fuzzshard.report.seen_findings import SeenFinding, seen_findings
from fuzzshard.report.stages import clock, counted
from fuzzshard.report.stats import PeriodicWriter, Stats, stats_of
from fuzzshard.verdict import Status

SECONDS_BETWEEN = 30.0
"""Between two pages of a campaign that runs, at least; a browser asks for the next as often."""

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("fuzzshard.report", "html"),
    undefined=jinja2.StrictUndefined,
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["clock"] = clock
TEMPLATES.filters["short"] = issue_name
TEMPLATES.filters["counted"] = counted


NO_CASE = "No case has been judged"


@dataclasses.dataclass(frozen=True)
class Tile:
    """One figure: what it is, its value, and what belongs to it. ``alarm``: a person should look
    at it.
    """

    name: str
    value: str
    more: str = ""
    alarm: bool = False


def report_writer(
    directory: Path, *, clock: Callable[[], float] = time.monotonic
) -> PeriodicWriter:
    """Return an event sink that keeps ``report.html`` in ``directory`` current."""
    return PeriodicWriter(
        PAGE_FILE,
        lambda: write_page([directory], directory / PAGE_FILE),
        seconds=SECONDS_BETWEEN,
        clock=clock,
    )


def write_page(directories: Sequence[Path], output: Path) -> int:
    """Writes the report of one or several directories to ``output``; the number of bytes."""
    data = page([read_node(directory) for directory in directories]).encode()
    write_atomic(output, data)
    return len(data)


def _title(cause: str) -> str:
    """Return what a mend says of its cause; a mend of somebody else's may not be here."""
    mend = own_mends().get(cause)
    return mend.title if mend is not None else "a mend that is not fuzzshard's own"


def page(nodes: Sequence[CampaignNode]) -> str:
    """Return the HTML for ``nodes``, side by side: campaigns, or corpora without one."""
    findings = seen_findings(nodes)
    stats = stats_of(nodes, findings)
    seen = {name for node in nodes for name in node.first_seen}
    return TEMPLATES.get_template("page.html.j2").render(
        version=__version__,
        written=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(stats.updated)),
        headline=headline(stats, findings),
        stats=stats,
        refresh=SECONDS_BETWEEN,
        settings=_settings(nodes),
        tiles=[
            *(_tiles(stats) if stats.sessions else _corpus_tiles(findings)),
            *_unreadable_tile(nodes),
        ],
        verdicts=[
            (status, stats.verdicts[status], stats.verdicts[status] / stats.cases)
            for status in Status
            if status in stats.verdicts
        ],
        groups=[cards(group) for group in by_cause(findings)],
        releases=releases,
        choices=_choices(findings),
        causes=[(cause, _title(cause), cases) for cause, cases in stats.causes.items()],
        comparison_heads=HEADS,
        comparison_rows=list(comparison_rows(stats.compared)),
        sessions=[
            (node, session, _ending(session)) for node in nodes for session in node.sessions
        ],
        started=lambda at: time.strftime("%Y-%m-%d %H:%M", time.gmtime(at)),
        missing=[(name, text) for name, text in FEATURES.items() if name not in seen],
    )


def headline(stats: Stats, findings: Sequence[SeenFinding] = ()) -> str:
    """Return the outcome in one line."""
    if not stats.sessions:
        causes = {finding.cause for finding in findings if finding.cause}
        of = f" of {counted(len(causes), 'cause')}" if causes else ""
        return f"{counted(stats.findings, 'finding')}{of}"
    cases = counted(stats.cases, "case")
    if not stats.cases:
        done = counted(len(findings), "finding")
        return f"{done}, and no other case has been judged" if findings else NO_CASE
    if not stats.findings:
        return f"No findings in {cases}"
    if stats.new_findings == stats.findings:
        return f"{counted(stats.findings, 'distinct finding')} in {cases}"
    known = stats.findings - stats.new_findings
    return f"{counted(stats.new_findings, 'new finding')} in {cases}, and {known} known before"


def _choices(findings: Sequence[SeenFinding]) -> dict[str, list[tuple[str, int]]]:
    """Return what the findings can be filtered by: the values of each property that has several,
    and how many findings have each.
    """
    counts: dict[str, Counter[str]] = {}
    for name in ("severity", "component", "cause", "status"):
        counts[name] = Counter(getattr(finding, name) for finding in findings)
    ranks = {"severity": severity_rank, "component": component_rank}
    return {
        name: sorted(count.items(), key=lambda item: (ranks.get(name, str)(item[0]), item[0]))
        for name, count in counts.items()
        if len(count) > 1
    }


def _corpus_tiles(findings: Sequence[SeenFinding]) -> list[Tile]:
    """Return how many findings are how bad, and how many are open."""
    by_severity = Counter(finding.severity for finding in findings)
    by_status = Counter(finding.status for finding in findings)
    return [
        *(
            Tile(severity, str(by_severity[severity]), alarm=severity is Severity.SILENT)
            for severity in Severity
            if by_severity[severity]
        ),
        *(Tile(status, str(count)) for status, count in sorted(by_status.items())),
    ]


def _unreadable_tile(nodes: Sequence[CampaignNode]) -> list[Tile]:
    """Return how many entries this page cannot show."""
    broken = len(unreadable(nodes))
    more = "corpus verify says what is wrong"
    return [Tile("entries that cannot be read", str(broken), more, alarm=True)] if broken else []


def _settings(nodes: Sequence[CampaignNode]) -> list[str]:
    """Return what ran where, each said once."""
    infos: Counter[str] = Counter()
    for node in nodes:
        if (session := node.last) is None:
            continue
        infos[f"{session.worlds} x {session.world_size} ranks on {session.device}"] += 1
        infos.update(session.options["stream"].get("steering", ()))
        if session.info is not None:
            infos[f"torch {session.info['torch']}"] += 1
            infos.update(off_lines(session.info))
    seeds = dict.fromkeys(str(session.seed) for node in nodes for session in node.sessions)
    shown = ", ".join(list(seeds)[:3]) + (", ..." if len(seeds) > 3 else "")
    where = f"{len(nodes)} directories" if len(nodes) > 1 else str(nodes[0].path)
    return [where, *infos, *([f"seed {shown}"] if seeds else ["no campaign has run there"])]


def _tiles(stats: Stats) -> list[Tile]:
    more = [f"{stats.new_findings} new"]
    more += [f"{stats.inconclusive} did not come back"] if stats.inconclusive else []
    return [
        Tile("distinct findings", str(stats.findings), ", ".join(more), alarm=stats.findings > 0),
        Tile("cases", f"{stats.cases:,}", f"in {clock(stats.seconds)}"),
        Tile("cases per second", f"{stats.cases_per_second:.2f}"),
        *(
            Tile(name, str(cases), alarm=True)
            for name, status in (("hangs", Status.HANG), ("crashes", Status.CRASH))
            if (cases := stats.verdicts.get(status, 0))
        ),
        Tile(
            "features",
            f"{stats.features_seen} of {stats.features_total}",
            f"the last new one {clock(stats.seconds_since_new_feature)} ago",
        ),
    ]


def _ending(session: SessionRow) -> str:
    if session.ended is not None:
        return f"{session.reason} (exit code {session.exit_code})"
    return "running" if is_running(session) else "killed"
