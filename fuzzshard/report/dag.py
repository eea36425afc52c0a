"""The forward of a block as a DAG, drawn as text."""

from __future__ import annotations

import networkx

from fuzzshard.case.graph import Block, Call, value_node

RETURN = "return"
"""A keyword, so no node can have this name."""


def forward_graph(block: Block) -> networkx.DiGraph[str]:
    """Inputs, nodes and the return of ``block``; an edge is a value that is read."""
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    for name in block.inputs:
        graph.add_node(name, label=name)
    for node in block.nodes:
        function = " or ".join(node.modules) if isinstance(node, Call) else f"torch.{node.op}"
        no_grad = ", no_grad" if isinstance(node, Call) and not node.grad else ""
        graph.add_node(
            node.name, label=f"{node.name} = {function}({', '.join(node.args)}{no_grad})"
        )
        graph.add_edges_from((value_node(arg), node.name) for arg in node.args)
    graph.add_node(RETURN, label=f"return {_returned(block)}")
    graph.add_edges_from((value_node(output), RETURN) for output in block.outputs)
    return graph


def _returned(block: Block) -> str:
    if block.returns in ("tensor", "tuple"):
        return ", ".join(block.outputs)
    items = ", ".join(f"out{i}: {output}" for i, output in enumerate(block.outputs))
    return f"{block.returns}({items})"


def draw_forward(block: Block) -> list[str]:
    """The lines of the drawing; ``╾`` lists the other values that a node reads."""
    return list(networkx.generate_network_text(forward_graph(block), vertical_chains=True))
