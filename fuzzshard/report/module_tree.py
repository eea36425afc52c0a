"""The model of a Case as a tree: widths, parameter shapes, and what the plan does to each
module.
"""

from __future__ import annotations

from collections import Counter

import networkx
from rich.text import Text
from rich.tree import Tree

from fuzzshard.analysis.inferred import Inferred
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Alias, Block, Call, Module, join, resolve, value_node, walk
from fuzzshard.parts.leaf import Leaf
from fuzzshard.parts.op import expression
from fuzzshard.parts.part import Shape


def module_tree(case: Case, inferred: Inferred) -> Tree:
    """Return every registered module once, in registration order; an alias points to the module it
    names.
    """
    return _tree(ModuleNotes(case, inferred), "", "model", case.model)


def shape_text(shape: Shape) -> str:
    """Return ``[8, 4]``."""
    return f"[{', '.join(map(str, shape))}]"


def describe(module: Module, width: int) -> str:
    """Return a module as PyTorch would print it, with the input width filled in."""
    match module:
        case Leaf():
            return module.text(width)
        case Block(inputs=inputs, outputs=outputs, returns=returns):
            what = "a tensor" if returns == "tensor" else f"a {returns} of {len(outputs)}"
            return f"Block({', '.join(inputs)}) → {what}"
        case Alias(target=target):
            return f"the same module as {expression(target)}"


class ModuleNotes:
    """What the plan of a case says about each of its modules, for the tree."""

    def __init__(self, case: Case, inferred: Inferred) -> None:
        self.inferred = inferred
        self.groups = {m: i for i, group in enumerate(case.wrap) for m in group.modules}
        self.ties = {tie.parameter: tie.source for tie in case.ties}
        self.freezes = {
            f.target: "frozen after wrapping" if f.after_wrap else "frozen" for f in case.freezes
        }
        self.checkpoints = {c.module: c.implementation for c in case.checkpoints}
        self.num_calls = Counter(
            found[0]
            for path, block in walk(case.model)
            if isinstance(block, Block)
            for node in block.nodes
            if isinstance(node, Call) and (found := resolve(case.model, join(path, node.module)))
        )

    def what(self, path: str, module: Module) -> str:
        """Return ``"Linear(4 → 2)"``."""
        return describe(module, 0 if isinstance(module, Alias) else self.inferred.width(path))

    def parameters(self, path: str, module: Module) -> list[str]:
        """Return ``["weight [2, 4] frozen", "bias [2]"]``; a block has none of its own."""
        if not isinstance(module, Leaf):
            return []
        shapes = module.parameters(self.inferred.width(path))
        return [self._parameter(join(path, name), name, shape) for name, shape in shapes.items()]

    def _parameter(self, fqn: str, name: str, shape: Shape) -> str:
        if fqn in self.ties:
            return f"{name} = {expression(self.ties[fqn])} (tied)"
        frozen = f" {self.freezes[fqn]}" if fqn in self.freezes else ""
        return f"{name} {shape_text(shape)}{frozen}"

    def badges(self, path: str) -> list[str]:
        """Return its wrap group, and what else sets it apart."""
        badges = []
        if path in self.groups:
            badges.append(f"group {self.groups[path]}")
        if path in self.freezes:
            badges.append(self.freezes[path])
        if path in self.checkpoints:
            badges.append(f"checkpoint, {self.checkpoints[path]}")
        if self.num_calls[path] > 1:
            badges.append(f"called {self.num_calls[path]} times")
        if path not in self.inferred.called:
            badges.append("unused")
        return badges


def _tree(notes: ModuleNotes, path: str, name: str, module: Module) -> Tree:
    tree = Tree(_line(notes, path, name, module), guide_style="dim")
    if isinstance(module, Block):
        for child in module.children:
            tree.children.append(_tree(notes, join(path, child.name), child.name, child.module))
    return tree


def _line(notes: ModuleNotes, path: str, name: str, module: Module) -> Text:
    line = Text(name, style="bold")
    if isinstance(module, Alias):
        return line.append(f": {notes.what(path, module)}", style="not bold italic")
    line.append(f": {notes.what(path, module)}", style="not bold")
    for parameter in notes.parameters(path, module):
        line.append(f"  {parameter}", style="not bold cyan")
    for badge in notes.badges(path):
        line.append(f"  <{badge}>", style="not bold yellow")
    return line


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
