"""One block under construction: its children, nodes and values, and the primitives that tasks are
made of.
"""

from __future__ import annotations

from typing import NamedTuple

from fuzzshard.case.graph import Call, Child, TensorOp, join
from fuzzshard.parts.leaf import Leaf, Value
from fuzzshard.strategies.leaves import Leaves
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_MAX_LEAVES = 8
_MAX_LEAVES_EXACT = 4


class Growth:
    """What the blocks of one model share: the decisions left, names taken, modules that can be
    reused.
    """

    def __init__(self, tape: Tape, swarm: Swarm, leaves: Leaves) -> None:
        self.tape, self.swarm, self.leaves = tape, swarm, leaves
        self.taken: dict[str, int] = {}
        self.max_leaves = _MAX_LEAVES_EXACT if leaves.exact else _MAX_LEAVES
        self.num_leaves = 0
        self.reusable: list[Callable] = []
        """Leaves and blocks by their canonical paths."""

    def name(self, kind: str) -> str:
        """Return ``linear0``, ``linear1``, ...: unique in the model."""
        count = self.taken[kind] = self.taken.get(kind, -1) + 1
        return f"{kind}{count}"


class Callable(NamedTuple):
    """A module of one float argument that returns a tensor; ``trained``: the result depends on
    it.
    """

    name: str
    width: int
    out: int
    trained: bool


class BlockBuilder:
    """One block under construction. ``head`` is the value the next task extends."""

    def __init__(self, growth: Growth, path: str, inputs: tuple[str, ...], depth: int = 0) -> None:
        self.growth, self.tape, self.path, self.inputs, self.depth = (
            growth,
            growth.tape,
            path,
            inputs,
            depth,
        )
        self.children: list[Child] = []
        self.nodes: list[Call | TensorOp] = []
        self.widths: dict[str, int] = {}
        """The float values of the block."""
        self.trained: set[str] = set()
        """Values that depend on a parameter of the block, with gradients; some that do may be
        missing.
        """
        self.called: list[Callable] = []
        """Children of one float argument that return a tensor."""
        self.head = ""

    def register(self, leaf: Leaf) -> str:
        """Return a new child; its name."""
        name = self.growth.name(leaf.prefix)
        self.children.append(Child(name=name, module=leaf))
        self.growth.num_leaves += 1
        return name

    def value(self, width: int) -> str:
        """Return the name of the next node, which makes a value of ``width`` features."""
        name = f"h{len(self.nodes)}"
        self.widths[name] = width
        return name

    def op(self, op: str, *args: str, head_dim: int = 1) -> str:
        """Return a tensor op; the value it makes."""
        width = self.widths[args[0]] if op != "concat" else sum(self.widths[a] for a in args)
        name = self.value(width)
        made = TensorOp(name=name, op=op, args=args, head_dim=head_dim)  # type: ignore[arg-type]
        self.nodes.append(made)
        sources = args[:1] if op == "iadd" else () if op == "detach" else args
        if not self.trained.isdisjoint(sources):
            self.trained.add(name)
        return name

    def call(
        self,
        module: Callable,
        argument: str,
        *,
        grad: bool = True,
        alternatives: tuple[str, ...] = (),
    ) -> str:
        """Return a call of a child that returns a tensor; the value it makes."""
        name = self.value(module.out)
        self.nodes.append(
            Call(
                name=name,
                module=module.name,
                args=(argument,),
                grad=grad,
                alternatives=alternatives,
            )
        )
        if grad and module.trained:
            self.trained.add(name)
        return name

    def made(self, leaf: Leaf, width: int) -> Callable:
        """Return a new leaf for values of ``width`` features."""
        out = leaf.result(Value(width)).size
        return Callable(self.register(leaf), width, out, leaf.has_parameters)

    def call_leaf(self, argument: str, leaf: Leaf) -> str:
        """Return a new leaf, called; the value it makes."""
        module = self.made(leaf, self.widths[argument])
        self.offer(module)
        value = self.call(module, argument)
        if argument in self.trained:
            self.trained.add(value)
        return value

    def offer(self, module: Callable) -> None:
        """Lets later tasks call a child again, or register it at a second place."""
        self.called.append(module)
        self.growth.reusable.append(module._replace(name=join(self.path, module.name)))

    def read(self, name: str, leaf: Leaf, out: int) -> None:
        """Calls a leaf, whose result has ``out`` features, on an input of ids or an image."""
        self.call(Callable(self.register(leaf), 0, out, True), name)

    def earlier(self) -> str:
        """Return a value of the block, the head or an older one."""
        return self.tape.pick([*reversed(self.widths)])

    def apply(self, value: str) -> str:
        """Return a leaf on ``value``, or a relu when the model has enough leaves."""
        if self.growth.num_leaves >= self.growth.max_leaves:
            return self.op("relu", value)
        return self.call_leaf(value, self.growth.leaves.any(self.widths[value]))

    def project(self, value: str, width: int) -> str:
        """Return ``value`` itself, or a leaf on it, of ``width`` features."""
        have = self.widths[value]
        return (
            value
            if have == width
            else self.call_leaf(value, self.growth.leaves.to_width(have, width))
        )
