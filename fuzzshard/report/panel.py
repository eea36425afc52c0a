"""The live panel of a campaign on a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fuzzshard.corpus.store import PAGE_FILE
from fuzzshard.report.busy import ROOM_FOR_ECHO
from fuzzshard.report.lines import corpus_text, counts_text
from fuzzshard.report.stages import CampaignProgress, clock, counted


class CampaignPanel:
    """Renders ``progress`` as it is at that moment; rich asks for it several times a second."""

    def __init__(self, progress: CampaignProgress) -> None:
        self.progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the panel, a line for each thing: what does not fit is cut."""
        yield self._drawn(options.max_width - ROOM_FOR_ECHO)

    def _drawn(self, width: int) -> RenderableType:
        progress = self.progress
        if (started := progress.started) is None:
            return Text(f"starting, {clock(progress.elapsed)}")
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(style="dim", no_wrap=True, min_width=len("known bugs"))
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        budget = f" of {clock(started.max_time)}" if started.max_time is not None else ""
        limit = f" of {started.max_cases}" if started.max_cases is not None else ""
        rate = progress.cases / max(progress.elapsed, 1e-9)
        table.add_row("time", f"{clock(progress.elapsed)}{budget}")
        table.add_row("cases", f"{progress.cases}{limit}, {rate:.2f} per second")
        if before := started.continues:
            so_far = f"{counted(before.cases, 'case')} in {clock(before.elapsed)}"
            table.add_row("before", f"{so_far} ({before.ended})")
        if started.steering:
            table.add_row("steered", started.steering)
        table.add_row("verdicts", counts_text(progress.counts))
        self._add_findings(table)
        if progress.corpus is not None:
            table.add_row("corpus", corpus_text(progress.corpus))
        if coverage := progress.coverage:
            seen = f"{coverage.features_seen} of {coverage.features_total} features"
            table.add_row("coverage", seen)
        if progress.last_new is not None:
            table.add_row("last new", f"{clock(progress.elapsed - progress.last_new)} ago")
        self._add_worlds(table)
        table.add_row("page", str(Path(started.corpus) / PAGE_FILE))
        title = f"fuzzshard, seed {started.seed}, {started.device}"
        return Panel(
            Group(table),
            title=title,
            title_align="left",
            subtitle="Ctrl-C stops; nothing is lost",
            width=max(20, width),
        )

    def _add_findings(self, table: Table) -> None:
        progress = self.progress
        parts = [f"{progress.num_findings} distinct"] if progress.num_findings else []
        if progress.stages.on_findings:
            parts.append(f"{progress.stages.on_findings} in work")
        if progress.num_flaky:
            parts.append(f"{progress.num_flaky} inconclusive")
        if progress.num_hits:
            parts.append(f"{counted(progress.num_hits, 'more case')} with findings saved before")
        style = "bold red" if progress.num_findings or progress.stages.on_findings else "green"
        table.add_row("findings", Text(", ".join(parts) or "none yet", style=style))
        if progress.last_finding:
            table.add_row("", Text(progress.last_finding, style=style))
        if progress.num_explained:
            cases = counted(progress.num_explained, "case")
            table.add_row("known bugs", f"{cases} of torch's, counted and not shrunk")

    def _add_worlds(self, table: Table) -> None:
        stages = self.progress.stages
        if finishing := self.progress.finishing:
            table.add_row(
                "finishing", f"{finishing.reason}; what is cut off comes first next time"
            )
        for world, text in stages.texts().items():
            signature = stages.of_world[world].phase.signature
            table.add_row(f"world {world}", f"{text}: {signature}" if signature else text)
