"""The autograd graph that forwards of a case build, as far as the case tells.

Autograd runs the nodes that a loss depends on from the newest to the oldest: a node is ready when
all its readers have run, they are newer, and the ready queue prefers the newest
(torch/csrc/autograd/engine.cpp, ``CompareNodeTaskTime``). So one list of nodes in the order of
their making is all that a backward needs.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from typing_extensions import override

from fuzzshard.analysis.check_dtypes import CastHere, casts_made
from fuzzshard.analysis.flow import flow_of
from fuzzshard.analysis.forward_walk import ForwardWalk
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.analysis.schedule_state import ScheduleState
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Call, Module, TensorOp
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


class Watcher:
    """Told when a module is called, as a module's hooks are; policies cast before and after it.
    Changes nothing by itself.
    """

    def enter(self, path: str, args: tuple[Value, ...], *, grad: bool) -> tuple[Value, ...]:
        """Return what a module gets that is called with ``args``."""
        return args

    def leave(self, path: str, results: tuple[Value, ...], *, grad: bool) -> tuple[Value, ...]:
        """Return what the caller of a module gets that returns ``results``."""
        return results


UNWATCHED = Watcher()


class AutogradGraph(ForwardWalk[Value]):
    """The nodes of all forwards so far, the oldest first."""

    def __init__(self, case: Case, found: Inferred, watcher: Watcher = UNWATCHED) -> None:
        super().__init__(case.model)
        self.case, self.found, self.watcher = case, found, watcher
        self.nodes: list[Node] = []
        self.leaves = flow_of(case).parameters
        self.casts: Mapping[str, deque[CastHere]] = {}
        self.grad = True
        self.frozen: Collection[str] = ()
        self.training = True
        self.outputs: dict[int, tuple[Value, ...]] = {}
        """The outputs of each forward that has a backward yet, by its index."""

    def made(self, inputs: Iterable[Value], parameters: frozenset[str] = frozenset()) -> Node:
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
    ) -> tuple[Value, ...]:
        """Return the outputs of a forward of ``target``."""
        self.grad, self.paths, self.frozen, self.training = grad, paths, frozen, training
        needed = (grad and not target and t.requires_grad for t in self.case.inputs.tensors)
        made = [self.made(()) if needs else None for needs in needed]
        args = made if not target else [None] * len(self.found.input_values[target])
        return self.call(target, self.found.modules[target], tuple(args))

    def follow(self, at: ScheduleState) -> list[Node]:
        """Runs a forward if the next op is one; the nodes of the losses that it takes if it is a
        backward. Their outputs stay where the graph is retained.
        """
        if (call := at.op.call) is not None:
            self.casts = casts_made(
                self.case, self.found, call.target, cast=at.cast, paths=at.paths
            )
            self.outputs[at.index] = self.forward(
                call.target, grad=call.grad, paths=at.paths, frozen=at.frozen, training=at.training
            )
        retains = at.op.takes and at.op.takes.retains
        take = self.outputs.__getitem__ if retains else self.outputs.pop
        taken = [(forward.call, take(forward.place)) for forward in at.taken]
        return [
            node
            for call, values in taken
            for i in call.used(len(values))
            if (node := values[i]) is not None
        ]

    @override
    def call(self, path: str, module: Module, args: tuple[Value, ...]) -> tuple[Value, ...]:
        cast = self.casts[path].popleft() if path in self.casts else None
        if cast is not None:
            args = self._cast(args, cast.inputs)
        args = self.watcher.enter(path, args, grad=self.grad)
        results = self.watcher.leave(path, super().call(path, module, args), grad=self.grad)
        return results if cast is None else self._cast(results, cast.outputs)

    def _cast(self, values: tuple[Value, ...], casts: Iterable[bool]) -> tuple[Value, ...]:
        """Return the values, those that are cast as what the cast makes of them."""
        return tuple(
            (self.made((value,)) if self.grad else None)
            if value is not None and is_cast
            else value
            for value, is_cast in zip(values, casts, strict=True)
        )

    @override
    def leaf(self, path: str, leaf: Leaf, arg: Value) -> Value:
        if leaf.drops is not None and not (self.training and leaf.drops):
            return arg
        parameters = self.leaves[path].difference(self.frozen)
        if not self.grad or (arg is None and not parameters):
            return None
        return self.made((arg,), parameters)

    @override
    def node(self, path: str, node: Call, args: tuple[Value, ...]) -> tuple[Value, ...]:
        outside, self.grad = self.grad, self.grad and node.grad
        results = super().node(path, node, args)
        self.grad = outside
        return results

    @override
    def joined(
        self, path: str, node: Call, made: Sequence[tuple[Value, ...]]
    ) -> tuple[Value, ...]:
        (results,) = made
        return results

    @override
    def tensor_op(self, path: str, node: TensorOp, args: tuple[Value, ...]) -> Value:
        if node.op == "iadd" or (node.op in ("add", "mul") and len(args) == 1):
            return args[0]
        if node.op == "detach" or not self.grad or all(a is None for a in args):
            return None
        return self.made(args)


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
