"""The report as one HTML file: everything that it shows is in it, and it asks for nothing."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from fuzzshard import __version__
from fuzzshard.case.feature_names import FEATURES
from fuzzshard.corpus.atomic import write_atomic
from fuzzshard.corpus.store import PAGE_FILE
from fuzzshard.events import CampaignFinished, Event
from fuzzshard.instruments import off_lines
from fuzzshard.journal.history import SessionRow
from fuzzshard.mending.mend import own_mends
from fuzzshard.report.html.cards import card
from fuzzshard.report.html.plots import (
    NARROW,
    WIDE,
    coverage_plot,
    durations_plot,
    throughput_plot,
    verdicts_plot,
)
from fuzzshard.report.html.scale import duration, number
from fuzzshard.report.node import Node, is_running, read_node
from fuzzshard.report.seen_findings import seen_findings, unseen_entries
from fuzzshard.report.stats import Stats, stats_of
from fuzzshard.report.timeline import Timeline, read_timeline
from fuzzshard.verdict import Status

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("fuzzshard.report", "html"),
    undefined=jinja2.StrictUndefined,
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["duration"] = duration


@dataclasses.dataclass(frozen=True)
class Tile:
    """One figure: what it is, its value, and what belongs to it. ``alarm``: a person should look
    at it.
    """

    name: str
    value: str
    more: str = ""
    alarm: bool = False


class ReportWriter:
    """An event sink that writes ``report.html`` into ``directory`` when the campaign ends, after
    the journal.

    What is wrong with it does not change how the campaign ended: it is said on stderr.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, event: Event) -> None:
        """Waits for the last event."""
        if not isinstance(event, CampaignFinished):
            return
        try:
            write_page([self._directory], self._directory / PAGE_FILE)
        except Exception as error:
            print(f"fuzzshard: {PAGE_FILE} is not written: {error!r}", file=sys.stderr)


def write_page(directories: Sequence[Path], output: Path) -> int:
    """Writes the report of one or several directories to ``output``; the number of bytes."""
    data = page([read_node(directory) for directory in directories]).encode()
    write_atomic(output, data)
    return len(data)


def _title(cause: str) -> str:
    """What a mend says of its cause; a mend of somebody else's may not be here."""
    mend = own_mends().get(cause)
    return mend.title if mend is not None else "a mend that is not fuzzshard's own"


def page(nodes: Sequence[Node]) -> str:
    """The HTML for campaigns that ran in ``nodes``, side by side."""
    findings = seen_findings(nodes)
    stats = stats_of(nodes, findings)
    timeline = read_timeline(nodes, findings)
    seen = {key[0] for node in nodes for key in node.first_seen if len(key) == 1}
    return _TEMPLATES.get_template("page.html.j2").render(
        version=__version__,
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(stats.updated)),
        headline=headline(stats),
        stats=stats,
        settings=_settings(nodes),
        tiles=_tiles(stats),
        plots=_plots(timeline) if stats.cases else {},
        verdicts=[
            (status, stats.verdicts[status], stats.verdicts[status] / stats.cases)
            for status in Status
            if status in stats.verdicts
        ],
        cards=[card(finding) for finding in findings],
        unseen=unseen_entries(nodes),
        causes=[(cause, _title(cause), cases) for cause, cases in stats.causes.items()],
        sessions=[
            (node, session, _ending(session)) for node in nodes for session in node.sessions
        ],
        started=lambda at: time.strftime("%Y-%m-%d %H:%M", time.gmtime(at)),
        missing=[(name, text) for name, text in FEATURES.items() if name not in seen],
    )


def headline(stats: Stats) -> str:
    """The outcome in one line."""
    cases = f"{stats.cases:,} case{'' if stats.cases == 1 else 's'}"
    if not stats.cases:
        return "No case has been judged"
    if not stats.findings:
        return f"No findings in {cases}"
    return f"{stats.findings} distinct finding{'' if stats.findings == 1 else 's'} in {cases}"


def _settings(nodes: Sequence[Node]) -> list[str]:
    """What ran where, each said once."""
    infos: Counter[str] = Counter()
    for node in nodes:
        session = node.last
        infos[f"{session.worlds} x {session.world_size} ranks on {session.device}"] += 1
        if session.info is not None:
            infos[f"torch {session.info['torch']}"] += 1
            infos.update(off_lines(session.info))
    seeds = dict.fromkeys(str(session.seed) for node in nodes for session in node.sessions)
    shown = ", ".join(list(seeds)[:3]) + (", ..." if len(seeds) > 3 else "")
    where = f"{len(nodes)} directories" if len(nodes) > 1 else str(nodes[0].path)
    return [where, *infos, f"seed {shown}"]


def _tiles(stats: Stats) -> list[Tile]:
    more = [f"{stats.new_findings} new"] if stats.new_findings < stats.findings else []
    more += [f"{stats.inconclusive} did not come back"] if stats.inconclusive else []
    tiles = [
        Tile("distinct findings", str(stats.findings), ", ".join(more), alarm=stats.findings > 0),
        Tile("cases", f"{stats.cases:,}", f"in {duration(stats.seconds)}"),
        Tile("cases per second", number(stats.cases_per_second)),
        Tile("hangs", str(stats.hangs), alarm=stats.hangs > 0),
        Tile("crashes", str(stats.crashes), alarm=stats.crashes > 0),
        Tile("stability", _percent(stats.stability), "of confirming runs showed it again"),
        Tile("flake rate", _percent(stats.flake_rate), "of findings stayed away once"),
        Tile("features", f"{stats.features_seen} of {stats.features_total}"),
        Tile("pairs of features", f"{stats.pairs_seen:,}"),
        Tile(
            "since a new pair", duration(round(stats.seconds_since_new_pair)), "of campaign time"
        ),
    ]
    if stats.gpu_seconds_per_case is not None:
        tiles.append(Tile("GPU time per case", duration(stats.gpu_seconds_per_case)))
    return tiles


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{share * 100:.3g} %"


def _plots(timeline: Timeline) -> dict[str, Markup]:
    plots = {
        "coverage_wide": coverage_plot(timeline, WIDE),
        "coverage_narrow": coverage_plot(timeline, NARROW),
        "throughput": throughput_plot(timeline),
        "verdicts": verdicts_plot(timeline),
    }
    if timeline.durations is not None:
        plots["durations"] = durations_plot(timeline.durations)
    return plots


def _ending(session: SessionRow) -> str:
    if session.ended is not None:
        return f"{session.reason} (exit code {session.exit_code})"
    return "running" if is_running(session) else "killed"
