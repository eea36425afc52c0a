from __future__ import annotations

import random
import re
from pathlib import Path
from xml.etree import ElementTree

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzshard.case.case import Mesh
from fuzzshard.case.graph import Alias, Call, walk
from fuzzshard.corpus.codec import read_entry
from fuzzshard.report.html.forward import draw_forward
from fuzzshard.report.html.layers import GAP_ACROSS, place
from fuzzshard.report.html.mesh import draw_mesh
from fuzzshard.report.html.schedule import draw_schedule

UNSHRUNK = sorted((Path(__file__).parents[2] / "corpus" / "findings").glob("*/unshrunk.json"))


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


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
