"""The autograd graph that forwards of a case build, as far as the case tells.

Autograd runs the nodes that a loss depends on from the newest to the oldest: a node is ready when
all its readers have run, they are newer, and the ready queue prefers the newest
(torch/csrc/autograd/engine.cpp, ``CompareNodeTaskTime``). So one list of nodes in the order of
their making is all that a backward needs.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from fuzzshard.analysis.check_dtypes import CastHere, casts_made
from fuzzshard.analysis.flow import flow_of
from fuzzshard.analysis.groups import modules_called
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.analysis.schedule_state import ScheduleState
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block, Call, Module, TensorOp, join, resolve
from fuzzshard.parts.leaf import Leaf


@dataclasses.dataclass(eq=False)
class Node:
    """One or several functions of autograd that run together.

    ``parameters`` get gradients here. ``hooks`` are wrap groups whose hooks run before the node
    does. ``inputs_of`` is the wrap group whose module's inputs pass through here.
    """

    number: int
    inputs: tuple[Node, ...]
    parameters: frozenset[str] = frozenset()
    inputs_of: int | None = None
    hooks: list[int] = dataclasses.field(default_factory=list)


Value = Node | None
"""A tensor: the node that made it, or None where it requires no gradient."""


class Watcher(Protocol):
    """Told when a module is called, as a module's hooks are; policies cast before and after it."""

    def enter(self, path: str, args: list[Value], *, grad: bool) -> list[Value]:
        """Return what a module gets that is called with ``args``."""

    def leave(self, path: str, results: list[Value], *, grad: bool) -> list[Value]:
        """Return what the caller of a module gets that returns ``results``."""


class Unwatched:
    """Modules whose hooks do not matter."""

    def enter(self, path: str, args: list[Value], *, grad: bool) -> list[Value]:
        """Changes nothing."""
        return args

    def leave(self, path: str, results: list[Value], *, grad: bool) -> list[Value]:
        """Changes nothing."""
        return results


class AutogradGraph:
    """The nodes of all forwards so far, the oldest first."""

    def __init__(self, case: Case, found: Inferred, watcher: Watcher) -> None:
        self.case, self.found, self.watcher = case, found, watcher
        self.nodes: list[Node] = []
        self.leaves = flow_of(case).parameters
        self.casts: Mapping[str, deque[CastHere]] = {}
        self.paths: Mapping[str, int] = {}
        self.frozen: Collection[str] = ()
        self.training = True
        self.outputs: dict[int, list[Value]] = {}
        """The outputs of each forward that has a backward yet, by its index."""

    def node(self, inputs: Iterable[Value], parameters: frozenset[str] = frozenset()) -> Node:
        """Makes a node."""
        known = tuple(v for v in inputs if v is not None)
        self.nodes.append(Node(len(self.nodes), known, parameters))
        return self.nodes[-1]

    def forward(
        self,
        target: str,
        *,
        grad: bool,
        paths: Mapping[str, int],
        frozen: Collection[str],
        training: bool,
    ) -> list[Value]:
        """Return the outputs of a forward of ``target``."""
        self.paths, self.frozen, self.training = paths, frozen, training
        args: list[Value] = [None] * len(self.found.input_values[target])
        if grad and not target:
            args = [self.node(()) if t.requires_grad else None for t in self.case.inputs.tensors]
        return self._module(target, self.found.modules[target], args, grad)

    def follow(self, at: ScheduleState) -> list[Node]:
        """Runs a forward if the next op is one; the nodes of the losses that it takes if it is a
        backward.
        """
        if (call := at.op.call) is not None:
            self.casts = casts_made(
                self.case, self.found, call.target, cast=at.cast, paths=at.paths
            )
            self.outputs[at.index] = self.forward(
                call.target, grad=call.grad, paths=at.paths, frozen=at.frozen, training=at.training
            )
        return taken_nodes(at, self.outputs)

    def _module(self, path: str, module: Module, args: list[Value], grad: bool) -> list[Value]:
        """Calls a module."""
        cast = self.casts[path].popleft() if path in self.casts else None
        if cast is not None:
            args = self._cast(args, cast.inputs, grad=grad)
        args = self.watcher.enter(path, args, grad=grad)
        results = self._block(path, module, args, grad) if isinstance(module, Block) else None
        if results is None:
            results = [self._leaf(path, module, args, grad)]
        results = self.watcher.leave(path, results, grad=grad)
        if cast is not None:
            results = self._cast(results, cast.outputs, grad=grad)
        return results

    def _cast(self, values: list[Value], casts: Iterable[bool], *, grad: bool) -> list[Value]:
        """Return the values, those that are cast as what the cast makes of them."""
        return [
            (self.node((value,)) if grad else None) if value is not None and is_cast else value
            for value, is_cast in zip(values, casts, strict=True)
        ]

    def _leaf(self, path: str, module: Module, args: list[Value], grad: bool) -> Value:
        drops = module.drops if isinstance(module, Leaf) else None
        if drops is not None and not (self.training and drops):
            return args[0]
        parameters = self.leaves[path].difference(self.frozen)
        if not grad or (args[0] is None and not parameters):
            return None
        return self.node(args, parameters)

    def _block(self, path: str, block: Block, args: list[Value], grad: bool) -> list[Value]:
        values = dict(zip(block.inputs, args, strict=True))
        for node in block.nodes:
            read = [values[a] for a in node.args]
            if isinstance(node, TensorOp):
                values[node.name] = self._tensor_op(node, read, grad)
                continue
            results = self._call(path, node, read, grad)
            values[node.name] = results[0]
            values |= {f"{node.name}.{i}": result for i, result in enumerate(results)}
        return [values[v] for v in block.outputs]

    def _call(self, block: str, node: Call, args: list[Value], grad: bool) -> list[Value]:
        (name,) = modules_called(node, block, self.paths)
        target = resolve(self.case.model, join(block, name))
        assert target is not None
        return self._module(*target, args, grad and node.grad)

    def _tensor_op(self, op: TensorOp, args: list[Value], grad: bool) -> Value:
        if op.op == "iadd" or (op.op in ("add", "mul") and len(args) == 1):
            return args[0]
        if op.op == "detach" or not grad or all(a is None for a in args):
            return None
        return self.node(args)


def taken_nodes(at: ScheduleState, outputs: dict[int, list[Value]]) -> list[Node]:
    """Take from ``outputs``, by their forward, the nodes that the next op differentiates; they
    stay where their graph is retained.
    """
    take = outputs.__getitem__ if at.op.takes and at.op.takes.retains else outputs.pop
    taken = [(forward.call, take(forward.place)) for forward in at.taken]
    return [
        node
        for call, values in taken
        for i in call.used(len(values))
        if (node := values[i]) is not None
    ]


def reached(losses: Iterable[Node]) -> list[Node]:
    """Return the nodes that a backward of ``losses`` runs, in its order."""
    seen: dict[int, Node] = {}
    stack = list(losses)
    while stack:
        node = stack.pop()
        if node.number not in seen:
            seen[node.number] = node
            stack += node.inputs
    return [seen[number] for number in sorted(seen, reverse=True)]
