"""The live panel of a campaign on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fuzzshard.report.lines import clock, counts_text
from fuzzshard.report.progress import Progress


class CampaignPanel:
    """Renders ``progress`` as it is at that moment; rich asks for it several times a second."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def __rich__(self) -> RenderableType:
        progress = self.progress
        if (started := progress.started) is None:
            return Text("starting")
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        elapsed = clock(progress.elapsed)
        budget = f" of {clock(started.max_time)}" if started.max_time is not None else ""
        limit = f" of {started.max_cases}" if started.max_cases is not None else ""
        rate = progress.cases / max(progress.elapsed, 1e-9)
        table.add_row("time", f"{elapsed}{budget}")
        table.add_row("cases", f"{progress.cases}{limit}, {rate:.2f} per second")
        if before := started.continues:
            table.add_row(
                "before", f"{before.cases} cases in {clock(before.elapsed)} ({before.ended})"
            )
        table.add_row("verdicts", counts_text(progress.counts))
        table.add_row("findings", self._findings())
        if coverage := progress.coverage:
            seen = f"{coverage.features_seen} of {coverage.features_total} features"
            table.add_row("coverage", f"{seen}, {coverage.pairs_seen} pairs")
        for world, phase in sorted(progress.phases.items()):
            table.add_row(f"world {world}", Text(phase))
        title = f"fuzzshard, seed {started.seed}, {started.device}"
        return Panel(
            Group(table), title=title, title_align="left", subtitle="Ctrl-C stops and keeps all"
        )

    def _findings(self) -> Text:
        progress = self.progress
        if not progress.last_finding:
            known = f"; {progress.num_hits} cases with known ones" if progress.num_hits else ""
            return Text(f"none yet{known}", style="green")
        again = f", {progress.num_hits} more cases with them" if progress.num_hits else ""
        flaky = f", {progress.num_flaky} inconclusive" if progress.num_flaky else ""
        text = f"{progress.num_findings} distinct{again}{flaky}\nlast: {progress.last_finding}"
        return Text(text, style="bold red", overflow="fold")
