from __future__ import annotations

import math
import random
import re
from pathlib import Path
from xml.etree import ElementTree

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import finished, judged, record

from fuzzshard.case.case import Mesh
from fuzzshard.case.graph import Alias, Call, walk
from fuzzshard.corpus.codec import read_entry
from fuzzshard.report.html.forward import draw_forward
from fuzzshard.report.html.layers import GAP_ACROSS, place
from fuzzshard.report.html.mesh import draw_mesh
from fuzzshard.report.html.plots import throughput_plot, verdicts_plot
from fuzzshard.report.html.scale import duration, number, ticks, time_ticks
from fuzzshard.report.html.schedule import draw_schedule
from fuzzshard.report.node import read_node
from fuzzshard.report.timeline import Timeline, bin_width, growth, read_timeline
from fuzzshard.verdict import Status

UNSHRUNK = sorted((Path(__file__).parents[2] / "corpus" / "findings").glob("*/unshrunk.json"))


def timeline_of(*directories: Path) -> Timeline:
    return read_timeline([read_node(directory) for directory in directories], [])


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def bars(svg: str) -> list[ElementTree.Element]:
    return list(parsed(svg).iter("rect"))


@given(st.floats(min_value=1e-6, max_value=1e12))
def test_ticks_begin_at_zero_reach_the_value_and_are_few(most: float) -> None:
    values = ticks(most)
    assert values[0] == 0
    assert values[-1] >= most * (1 - 1e-9)
    assert 2 <= len(values) <= 6


@given(st.floats(min_value=0.01, max_value=1e9))
def test_time_ticks_stay_within_the_axis_and_are_few(most: float) -> None:
    values = time_ticks(most)
    assert values[0] == 0
    assert values[-1] <= most * (1 + 1e-9)
    assert len(values) <= 6


@given(st.floats(min_value=0, max_value=400 * 86400))
def test_there_are_at_most_sixty_bins_or_so(seconds: float) -> None:
    assert math.ceil(seconds / bin_width(seconds)) <= 60


def test_numbers_and_durations_are_short() -> None:
    assert [number(value) for value in (0, 0.25, 1250, 48_000, 1_200_000)] == [
        "0",
        "0.25",
        "1,250",
        "48k",
        "1.2M",
    ]
    assert [duration(value) for value in (0, 0.02, 1.5, 59, 90, 5400, 100_000)] == [
        *("0 s", "20 ms", "1.5 s", "59 s", "1 min 30 s", "1 h 30 min", "1 d 3 h"),
    ]


def test_growth_counts_what_was_seen_and_lasts_until_the_end() -> None:
    assert growth([2.0, 1.0, 2.0], until=5.0) == [(0, 0), (1.0, 1), (2.0, 2), (2.0, 3), (5.0, 3)]


def test_growth_of_many_things_has_few_points() -> None:
    points = growth(map(float, range(100_000)), until=1e5)
    assert len(points) <= 500
    assert points[-1] == (1e5, 100_000)


def test_bins_count_every_case_once_by_verdict(node1: Path, node2: Path) -> None:
    timeline = timeline_of(node1, node2)
    assert sum(sum(counts.values()) for counts in timeline.bins) == 8
    assert timeline.bins[1]["DIVERGENCE"] == 2
    assert timeline.bins[8]["HANG"] == 1


def test_features_of_several_nodes_are_counted_once_at_their_first_time(tmp_path: Path) -> None:
    features = ["leaf:linear", "mesh:2"]
    late = record(tmp_path / "a", [*judged(features=features, at=6.0), finished(10.0)])
    early = record(tmp_path / "b", [*judged(features=features, at=2.0), finished(5.0)])
    timeline = timeline_of(late, early)
    assert timeline.features == [(0, 0), (2.0, 1), (2.0, 2), (10.0, 2)]
    assert timeline.features_by_node[str(late)] == [(0, 0), (6.0, 1), (6.0, 2), (10.0, 2)]


def test_the_histogram_holds_every_case_in_the_bar_of_its_time(tmp_path: Path) -> None:
    times = [0.011, 0.012, 0.9, 1.1, 30.0]
    events = [
        event for i, seconds in enumerate(times) for event in judged(seconds=seconds, at=100.0 * i)
    ]
    histogram = timeline_of(record(tmp_path, [*events, finished(500.0)])).durations
    assert histogram is not None
    for seconds in times:
        bar = next(i for i, edge in enumerate(histogram.edges[1:]) if seconds < edge)
        assert histogram.counts[bar] == sum(
            histogram.edges[bar] <= other < histogram.edges[bar + 1] for other in times
        )
    assert sum(histogram.counts) == len(times)
    assert histogram.quantile(0.5) == pytest.approx(1.0, rel=0.01)


def test_a_bar_of_throughput_says_its_rate(tmp_path: Path) -> None:
    events = [event for i in range(4) for event in judged(at=i * 0.2)]
    svg = throughput_plot(timeline_of(record(tmp_path, [*events, finished(2.0)])))
    assert [bar.findtext("title") for bar in bars(svg)] == [
        "4 cases per second, from 0 s on",
        "0 cases per second, from 1 s on",
    ]


def test_verdicts_are_stacked_without_the_cases_that_passed(tmp_path: Path) -> None:
    statuses = [Status.PASS, Status.HANG, Status.CRASH, Status.REJECTED]
    events = [event for i, status in enumerate(statuses) for event in judged(status, at=i * 0.1)]
    svg = verdicts_plot(timeline_of(record(tmp_path, [*events, finished(1.0)])))
    stack = bars(svg)
    assert [bar.get("class") for bar in stack] == [
        "verdict-hang",
        "verdict-crash",
        "verdict-rejected",
    ]
    tops = [float(bar.get("y", "")) for bar in stack]
    heights = [float(bar.get("height", "")) for bar in stack]
    assert tops[0] == pytest.approx(tops[1] + heights[1], abs=0.2)
    assert heights[0] == pytest.approx(heights[2], abs=0.2)


@st.composite
def dags(draw: st.DrawFn) -> networkx.DiGraph[str]:
    count = draw(st.integers(1, 14))
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_nodes_from(f"n{i}" for i in range(count))
    for end in range(1, count):
        for begin in draw(st.sets(st.integers(0, end - 1), max_size=3)):
            graph.add_edge(f"n{begin}", f"n{end}")
    return graph


@settings(deadline=None)  # on a busy machine a layout takes as long as it takes
@given(dags(), st.randoms(use_true_random=False))
def test_a_layout_has_no_overlap_and_every_edge_goes_down(
    graph: networkx.DiGraph[str], random: random.Random
) -> None:
    sizes = {node: (random.uniform(10, 200), random.uniform(20, 60)) for node in graph}
    placed = place(graph, sizes)
    boxes = {
        node: (
            x - sizes[node][0] / 2,
            y - sizes[node][1] / 2,
            x + sizes[node][0] / 2,
            y + sizes[node][1] / 2,
        )
        for node, (x, y) in placed.centres.items()
    }
    for a, (left, top, right, bottom) in boxes.items():
        assert left >= -1e-6
        assert right <= placed.width + 1e-6
        assert bottom <= placed.height + 1e-6
        for b, (other_left, other_top, other_right, other_bottom) in boxes.items():
            apart = (
                right + GAP_ACROSS <= other_left + 1e-6 or other_right + GAP_ACROSS <= left + 1e-6
            )
            assert a == b or apart or bottom <= other_top or other_bottom <= top
    for route in placed.routes.values():
        heights = [y for _, y in route]
        assert heights == sorted(heights)


def test_a_chain_is_drawn_straight() -> None:
    graph = networkx.path_graph(20, create_using=networkx.DiGraph)
    graph = networkx.relabel_nodes(graph, str)
    placed = place(graph, {node: (10.0 + 7 * int(node), 20.0) for node in graph})
    assert len({round(x) for x, _ in placed.centres.values()}) == 1


@pytest.mark.parametrize("file", UNSHRUNK[::7], ids=lambda file: file.parent.name)
def test_every_node_and_op_of_a_real_case_is_drawn(file: Path) -> None:
    case = read_entry(file).case
    drawn = parsed(draw_forward(case))
    names = {text.text for text in drawn.iter("text")}
    assert {
        node.module
        for node in case.model.nodes
        if isinstance(node, Call) and not node.alternatives
    } <= {(name or "").removesuffix(": Block") for name in names}
    ops = [
        rect for rect in parsed(draw_schedule(case, {})).iter("rect") if rect.get("class") == "op"
    ]
    assert len(ops) == len(case.schedule)


def test_a_module_that_is_called_twice_is_drawn_whole_once() -> None:
    cases = (read_entry(file).case for file in UNSHRUNK)
    case = next(
        case for case in cases if any(isinstance(module, Alias) for _, module in walk(case.model))
    )
    tags = [text.text or "" for text in parsed(draw_forward(case)).iter("text")]
    assert "call 1" in tags
    assert "call 2" in tags
    assert any(tag.startswith("is model.") for tag in tags)


@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(shard=1),
        Mesh(shard=3, replicate=2),
        Mesh(shard=2, tensor=2, pipeline=2),
        Mesh(shard=4, replicate=1),
    ],
)
def test_every_rank_of_a_mesh_is_drawn_once(mesh: Mesh) -> None:
    drawn = parsed(draw_mesh(mesh, {0}))
    ranks = [g for g in drawn.iter("g") if (g.get("class") or "").startswith("rank")]
    assert [int(g.findtext("text") or "") for g in ranks] == list(range(mesh.size))
    assert [g.get("class") for g in ranks].count("rank accused") == 1
    assert re.search(
        "rank accused.*rank 0", ElementTree.tostring(drawn, encoding="unicode"), re.DOTALL
    )
