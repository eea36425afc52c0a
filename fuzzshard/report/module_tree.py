"""The model of a Case as a tree: widths, parameter shapes, and what the plan does to each
module.
"""

from __future__ import annotations

from collections.abc import Iterator

import networkx
from rich.text import Text
from rich.tree import Tree

from fuzzshard.analysis.inferred import Inferred
from fuzzshard.case.case import Case
from fuzzshard.case.edit import split
from fuzzshard.case.graph import Alias, Block, Call, join, resolve, value_node, walk
from fuzzshard.parts.leaf import Leaf
from fuzzshard.parts.op import expression
from fuzzshard.parts.part import Shape


def module_tree(case: Case, found: Inferred) -> Tree:
    """Return every registered module once, in registration order; an alias points to the module it
    names.
    """
    trees: dict[str, Tree] = {}
    for path, module in walk(case.model):
        parent, name = split(path)
        trees[path] = tree = Tree(Text(name or "model", style="bold"), guide_style="dim")
        assert isinstance(tree.label, Text)
        if isinstance(module, Alias):
            named = f": the same module as {expression(module.target)}"
            tree.label.append(named, style="not bold italic")
        else:
            tree.label.append(f": {_text(module, found.width(path))}", style="not bold")
            for parameter in _parameters(case, found, path):
                tree.label.append(f"  {parameter}", style="not bold cyan")
            for badge in _badges(case, found, path):
                tree.label.append(f"  <{badge}>", style="not bold yellow")
        if path:
            trees[parent].children.append(tree)
    return trees[""]


def shape_text(shape: Shape) -> str:
    """``[8, 4]``."""
    return f"[{', '.join(map(str, shape))}]"


def _text(module: Block | Leaf, width: int) -> str:
    """Return a module as PyTorch would print it, with the input width filled in."""
    if isinstance(module, Leaf):
        return module.text(width)
    several = f"a {module.returns} of {len(module.outputs)}"
    what = "a tensor" if module.returns == "tensor" else several
    return f"Block({', '.join(module.inputs)}) → {what}"


def _parameters(case: Case, found: Inferred, path: str) -> Iterator[str]:
    """Yield ``"weight [2, 4] frozen"``, ``"bias [2]"``; a block has none of its own."""
    ties = case.tied
    leaf = found.leaves.get(path)
    for name, shape in leaf.parameters(found.width(path)).items() if leaf else ():
        fqn = join(path, name)
        if fqn in ties:
            yield f"{name} = {expression(ties[fqn])} (tied)"
        else:
            yield " ".join((name, shape_text(shape), *_frozen(case, fqn)))


def _badges(case: Case, found: Inferred, path: str) -> Iterator[str]:
    """Yield its wrap group, and what else sets it apart."""
    yield from (f"group {i}" for i, group in enumerate(case.wrap) if path in group.modules)
    yield from _frozen(case, path)
    yield from (f"checkpoint, {c.implementation}" for c in case.checkpoints if c.module == path)
    calls = sum(
        resolve(case.model, join(outer, node.module)) == (path, found.modules[path])
        for outer, block in found.modules.items()
        if isinstance(block, Block)
        for node in block.nodes
        if isinstance(node, Call)
    )
    if calls > 1:
        yield f"called {calls} times"
    if path not in found.called:
        yield "unused"


def _frozen(case: Case, target: str) -> Iterator[str]:
    for freeze in case.freezes:
        if freeze.target == target:
            yield "frozen after wrapping" if freeze.after_wrap else "frozen"


RETURN = "return"
"""A keyword, so no node can have this name."""


def draw_forward(block: Block) -> list[str]:
    """Return the lines of a drawing of its inputs, nodes and return; ``╾`` lists the other values
    that a node reads.
    """
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
    return list(networkx.generate_network_text(graph, vertical_chains=True))


def _returned(block: Block) -> str:
    if block.returns in ("tensor", "tuple"):
        return ", ".join(block.outputs)
    items = ", ".join(f"out{i}: {output}" for i, output in enumerate(block.outputs))
    return f"{block.returns}({items})"
