"""A layered layout of a DAG from top to bottom (Sugiyama, Tagawa and Toda 1981).

A node stands below all that it reads. An edge over several layers goes through a free place in
each, so that it crosses no box. Orders within layers follow the mean of the neighbours, and so do
positions.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Mapping, Sequence

import networkx

Size = tuple[float, float]
Point = tuple[float, float]
_Node = str | tuple[str, str, int]
"""A node of the graph, or the place of an edge (from, to) in a layer."""

GAP_ACROSS = 18.0
GAP_DOWN = 26.0
_PLACE_WIDTH = 10.0
_SWEEPS = 8
_STRAIGHTENING_SWEEPS = 60
_STRAIGHT = 8.0
"""How much more a long edge wants to be straight than a node wants to be below what it reads."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """Where everything is: centres of the nodes, and for each edge the points that it goes
    through.
    """

    width: float
    height: float
    centres: Mapping[str, Point]
    routes: Mapping[tuple[str, str], Sequence[Point]]


def place(graph: networkx.DiGraph[str], sizes: Mapping[str, Size]) -> Placed:
    """Lays out ``graph``, whose nodes have the given widths and heights."""
    layer_of = {
        node: i
        for i, layer in enumerate(networkx.topological_generations(graph))
        for node in layer
    }
    links = _links(graph, layer_of)
    layers: list[list[_Node]] = [[] for _ in range(max(layer_of.values()) + 1)]
    for node in links:
        layers[node[2] if isinstance(node, tuple) else layer_of[node]].append(node)
    widths = {node: _PLACE_WIDTH if isinstance(node, tuple) else sizes[node][0] for node in links}
    _order(layers, links)
    xs = _straighten(layers, links, widths)
    heights = [max(sizes[n][1] for n in layer if isinstance(n, str)) for layer in layers]
    tops = [sum(heights[:i]) + GAP_DOWN * i for i in range(len(layers))]
    centres = {node: (xs[node], tops[i] + heights[i] / 2) for node, i in layer_of.items()}
    routes: dict[tuple[str, str], list[Point]] = {}
    for begin, end in graph.edges:
        inner = [
            (xs[begin, end, layer], y)
            for layer in range(layer_of[begin] + 1, layer_of[end])
            for y in (tops[layer], tops[layer] + heights[layer])
        ]
        (x0, y0), (x1, y1) = centres[begin], centres[end]
        routes[begin, end] = [(x0, y0 + sizes[begin][1] / 2), *inner, (x1, y1 - sizes[end][1] / 2)]
    width = max(xs[node] + widths[node] / 2 for node in links)
    return Placed(width, tops[-1] + heights[-1], centres, routes)


def _links(graph: networkx.DiGraph[str], layer_of: Mapping[str, int]) -> dict[_Node, list[_Node]]:
    """The neighbours of every node in the layers next to it, with the places that long edges
    take.
    """
    links: dict[_Node, list[_Node]] = {node: [] for node in graph.nodes}
    for begin, end in graph.edges:
        between: list[_Node] = [(begin, end, i) for i in range(layer_of[begin] + 1, layer_of[end])]
        links.update({node: [] for node in between})
        chain: list[_Node] = [begin, *between, end]
        for above, below in itertools.pairwise(chain):
            links[above].append(below)
            links[below].append(above)
    return links


def _order(layers: list[list[_Node]], links: Mapping[_Node, Sequence[_Node]]) -> None:
    """Sorts each layer by the mean place of its neighbours in the layer before, down and up in
    turn.
    """
    for sweep in range(_SWEEPS):
        going = layers if sweep % 2 == 0 else layers[::-1]
        for before, layer in itertools.pairwise(going):
            rank = {node: i for i, node in enumerate(before)}
            own = {node: float(i) for i, node in enumerate(layer)}
            wish = {
                node: statistics.fmean([rank[m] for m in links[node] if m in rank] or [own[node]])
                for node in layer
            }
            layer.sort(key=wish.__getitem__)


def _straighten(
    layers: Sequence[Sequence[_Node]],
    links: Mapping[_Node, Sequence[_Node]],
    widths: Mapping[_Node, float],
) -> dict[_Node, float]:
    """The centre of each node across: the sum of the squares of what edges go across is made
    small.

    One layer after the other is set to its best; the sum has one minimum, and never grows.
    """
    xs: dict[_Node, float] = dict.fromkeys(widths, 0.0)
    for sweep in range(_STRAIGHTENING_SWEEPS):
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            wishes, weights = zip(*(_wish(node, links[node], xs) for node in layer), strict=True)
            apart = [
                (widths[a] + widths[b]) / 2 + GAP_ACROSS for a, b in itertools.pairwise(layer)
            ]
            xs.update(zip(layer, _nearest(wishes, weights, apart), strict=True))
    left = min(xs[node] - widths[node] / 2 for node in xs)
    return {node: x - left for node, x in xs.items()}


def _wish(
    node: _Node, neighbours: Sequence[_Node], xs: Mapping[_Node, float]
) -> tuple[float, float]:
    """Where a node would stand if it were alone in its layer, and how much it matters."""
    if not neighbours:
        return xs[node], 1.0
    weights = [
        _STRAIGHT if isinstance(node, tuple) and isinstance(m, tuple) else 1.0 for m in neighbours
    ]
    return statistics.fmean([xs[m] for m in neighbours], weights), sum(weights)


def _nearest(
    wishes: Sequence[float], weights: Sequence[float], apart: Sequence[float]
) -> list[float]:
    """The places nearest to ``wishes`` with the distances ``apart`` kept.

    Isotonic regression, by pooling adjacent violators (Barlow and others 1972).
    """
    offsets = list(itertools.accumulate(apart, initial=0.0))
    pools: list[tuple[float, float, int]] = []
    for wish, weight, offset in zip(wishes, weights, offsets, strict=True):
        pool = (wish - offset, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            (mean, total, count), (other, more, others) = pools.pop(), pool
            pool = ((mean * total + other * more) / (total + more), total + more, count + others)
        pools.append(pool)
    flat = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=True)]
