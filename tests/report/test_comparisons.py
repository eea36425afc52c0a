"""How engines were compared: shares that the journal keeps, in status, on the page, in JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from recorded import finished, judged, record

from fuzzshard.events import CaseJudged
from fuzzshard.report.comparisons import ALL
from fuzzshard.report.html.page import page
from fuzzshard.report.node import CampaignNode, read_node
from fuzzshard.report.stats import Stats, stats_of
from fuzzshard.report.status import status_lines
from fuzzshard.verdict import Compared

CASES = (
    {
        "ddp": Compared(comparison="bitwise", tensors=60),
        "fully_shard": Compared(comparison="bounded", tensors=20),
    },
    {
        "ddp": Compared(comparison="not applicable"),
        "fully_shard": Compared(comparison="precision", tensors=10, skipped=10),
    },
    {"ddp": Compared(comparison="refused"), "fully_shard": Compared(comparison="exact")},
    {"ddp": Compared(comparison="raised as expected"), "fully_shard": Compared(comparison="")},
)
SHARES = ("bitwise", "bounded", "half_precision", "not_compared", "not_run", "skipped")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    events = [
        replace(event, compared=compared) if isinstance(event, CaseJudged) else event
        for index, compared in enumerate(CASES)
        for event in judged(at=float(index))
    ]
    return record(tmp_path / "corpus", [*events, finished(9.0)])


def stats_in(*directories: Path) -> tuple[list[CampaignNode], Stats]:
    nodes = [read_node(directory) for directory in directories]
    return nodes, stats_of(nodes, [])


def test_shares_are_of_the_runs_of_engines_that_were_drawn(recorded: Path) -> None:
    _, stats = stats_in(recorded)
    shares = {
        engine: [of.runs, *(getattr(of, share) for share in SHARES)]
        for engine, of in stats.compared.items()
    }
    assert shares == {
        ALL: [8, 0.25, 0.125, 0.125, 0.25, 0.25, 0.1],
        "ddp": [4, 0.25, 0, 0, 0.25, 0.5, 0],
        "fully_shard": [4, 0.25, 0.25, 0.25, 0.25, 0, 0.25],
    }
    assert stats.compared[ALL].tensors == 100
    assert "half_precision" in msgspec.json.encode(stats).decode()


def test_directories_add_up(recorded: Path) -> None:
    _, twice = stats_in(recorded, recorded)
    assert twice.compared[ALL].runs == 16
    assert twice.compared["ddp"].not_run == 0.5


def test_status_and_the_page_have_a_table(recorded: Path) -> None:
    nodes, stats = stats_in(recorded)
    lines = list(status_lines(nodes, stats, []))
    (ddp,) = (line.split() for line in lines if line.split()[0] == "ddp")
    assert ddp == ["ddp", "4", "25.0", "%", *("0.0", "%") * 2, "25.0", "%", "50.0", "%", "0", "%"]
    assert '<td class="number" data-label="not run">50.0 %</td>' in page(nodes)
