"""Models: a block is grown from tasks, each of which extends its forward DAG by a node or a few.

The tasks of a case are what its swarm allows. Every task keeps the graph valid: operands of ``add``
and ``mul`` are brought to one width by a projection where they differ, and a value a task makes is
read by the same task unless making an unread one is the task.
"""

from __future__ import annotations

from typing import NamedTuple

from fuzzshard.case.case import Inputs
from fuzzshard.case.facts import DEFAULT_WIDTH
from fuzzshard.case.graph import (
    Activation,
    Alias,
    Block,
    Call,
    Child,
    Dropout,
    Embedding,
    Leaf,
    TensorOp,
    join,
)
from fuzzshard.strategies.leaves import Leaves
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_EDGE_TASKS = (
    "add",
    "mul",
    "concat",
    "detach",
    "relu",
    "tanh",
    "branch",
    "nested",
    "second_nested",
    "repeat",
    "alias",
    "no_grad_call",
    "unused_module",
    "unused_value",
)
_INEXACT_TASKS = frozenset(("mul", "tanh"))
_NUM_LEAVES = ((1, 3), (2, 4), (3, 3), (4, 2), (5, 1))
_NUM_LEAVES_EXACT = ((1, 4), (2, 4), (3, 1))
_MAX_LEAVES = 8
_MAX_LEAVES_EXACT = 4
_MAX_DEPTH = 3
_WIDEST = 24
_KINDS = {
    "linear": "linear",
    "layer_norm": "norm",
    "rms_norm": "norm",
    "batch_norm": "bn",
    "embedding": "embed",
    "conv1d": "conv",
    "raw_parameter": "scale",
    "mlp": "mlp",
    "attention": "attn",
    "dropout": "dropout",
    "activation": "act",
}


def model(tape: Tape, swarm: Swarm, pool: tuple[int, ...], inputs: Inputs, *, exact: bool) -> Block:
    """A root block for ``inputs``; ``exact`` keeps to operations without rounding and to few of them."""
    leaves = Leaves(tape, swarm, pool, sequence=inputs.seq > 0, exact=exact)
    growth = _Growth(tape, swarm, leaves)
    edges = [t for t in _EDGE_TASKS if t in swarm and not (exact and t in _INEXACT_TASKS)]
    count = tape.weighted(_NUM_LEAVES_EXACT if exact else _NUM_LEAVES)
    tasks = tape.shuffled([*["leaf"] * count, *tape.some(edges, 40 if exact else 70)])
    names = ("x",) if len(inputs.tensors) == 1 else tuple(f"x{i}" for i in range(len(inputs.tensors)))
    root = _BlockBuilder(growth, "", names)
    for name, tensor in zip(names, inputs.tensors, strict=True):
        if tensor.kind == "ids":
            root.embed(name, Embedding(vocab=tensor.size, dim=tape.pick(pool)))
        else:
            root.widths[name] = tensor.size
    root.start()
    root.grow(tasks)
    root.train()
    return root.finish("several_outputs" in swarm)


class _Growth:
    """What the blocks of one model share: the decisions left, names taken, modules that can be reused."""

    def __init__(self, tape: Tape, swarm: Swarm, leaves: Leaves) -> None:
        self.tape, self.swarm, self.leaves = tape, swarm, leaves
        self.taken: dict[str, int] = {}
        self.max_leaves = _MAX_LEAVES_EXACT if leaves.exact else _MAX_LEAVES
        self.num_leaves = 0
        self.reusable: list[_Callable] = []
        """Leaves and blocks by their canonical paths."""

    def name(self, kind: str) -> str:
        """``linear0``, ``linear1``, ...: unique in the model."""
        count = self.taken[kind] = self.taken.get(kind, -1) + 1
        return f"{kind}{count}"


class _Callable(NamedTuple):
    """A module of one float argument that returns a tensor; ``trained``: the result depends on it."""

    name: str
    width: int
    out: int
    trained: bool


class _BlockBuilder:
    """One block under construction. ``head`` is the value the next task extends."""

    def __init__(self, growth: _Growth, path: str, inputs: tuple[str, ...], depth: int = 0) -> None:
        self.growth, self.tape, self.path, self.inputs, self.depth = growth, growth.tape, path, inputs, depth
        self.children: list[Child] = []
        self.nodes: list[Call | TensorOp] = []
        self.widths: dict[str, int] = {}
        """The float values of the block."""
        self.trained: set[str] = set()
        """Values that depend on a parameter of the block, with gradients; some that do may be missing."""
        self.called: list[_Callable] = []
        """Children of one float argument that return a tensor."""
        self.head = ""

    def start(self) -> None:
        """Reads the first float value, and lets further ones meet it."""
        self.head, *others = self.widths
        for other in others:
            if self.tape.chance(70):
                self.merge(self.head, other)

    def grow(self, tasks: list[str]) -> None:
        """Carries out the tasks; a nested block takes some of those that are left."""
        rest = list(tasks)
        while rest:
            task = rest.pop(0)
            if task in ("nested", "second_nested"):
                if self.depth < _MAX_DEPTH - 1:
                    count = self.tape.below(min(len(rest), 5) + 1)
                    self.nest(rest[:count])
                    del rest[:count]
            else:
                self.extend(task, more="leaf" in rest)

    def extend(self, task: str, *, more: bool) -> None:
        """Carries out one task at the head; ``more`` says that a leaf still follows it."""
        head = self.head
        match task:
            case "leaf":
                self.head = self.call_leaf(head, self.growth.leaves.any(self.widths[head]))
            case "add" | "mul" | "concat":
                self.join(task, self.apply(head), self.earlier())
            case "relu" | "tanh":
                self.head = self.op(task, head)
            case "detach" if more and self.tape.chance(40):
                self.head = self.op("detach", head)
            case "detach":
                detached = self.op("detach", self.earlier())
                self.merge(self.apply(head), detached)
            case "branch":
                self.merge(self.apply(head), self.apply(self.earlier()))
            case "repeat" | "no_grad_call":
                self.repeat(grad=task == "repeat")
            case "alias":
                self.alias()
            case "unused_module":
                floats = [self.widths[name] for name in self.inputs if name in self.widths]
                self.register(self.growth.leaves.with_parameters([*floats, DEFAULT_WIDTH][0]))
            case "unused_value":
                self.apply(self.earlier())

    def train(self) -> None:
        """Makes sure that a backward from the head reaches a parameter."""
        if self.head not in self.trained:
            self.head = self.call_leaf(self.head, self.growth.leaves.with_parameters(self.widths[self.head]))

    def register(self, leaf: Leaf) -> str:
        """A new child; its name."""
        name = self.growth.name(_KINDS[str(leaf.__struct_config__.tag)])
        self.children.append(Child(name=name, module=leaf))
        self.growth.num_leaves += 1
        return name

    def value(self, width: int) -> str:
        """The name of the next node, which makes a value of ``width`` features."""
        name = f"h{len(self.nodes)}"
        self.widths[name] = width
        return name

    def op(self, op: str, *args: str) -> str:
        """A tensor op; the value it makes."""
        width = self.widths[args[0]] if op != "concat" else sum(self.widths[a] for a in args)
        name = self.value(width)
        self.nodes.append(TensorOp(name=name, op=op, args=args))  # type: ignore[arg-type]
        if op != "detach" and not self.trained.isdisjoint(args):
            self.trained.add(name)
        return name

    def call(self, module: _Callable, argument: str, *, grad: bool = True) -> str:
        """A call of a child that returns a tensor; the value it makes."""
        name = self.value(module.out)
        self.nodes.append(Call(name=name, module=module.name, args=(argument,), grad=grad))
        if grad and module.trained:
            self.trained.add(name)
        return name

    def call_leaf(self, argument: str, leaf: Leaf) -> str:
        """A new leaf, called; the value it makes."""
        width = self.widths[argument]
        trained = not isinstance(leaf, Dropout | Activation)
        module = _Callable(self.register(leaf), width, getattr(leaf, "out", width), trained)
        self.offer(module)
        value = self.call(module, argument)
        if argument in self.trained:
            self.trained.add(value)
        return value

    def offer(self, module: _Callable) -> None:
        """Lets later tasks call a child again, or register it at a second place."""
        self.called.append(module)
        self.growth.reusable.append(module._replace(name=join(self.path, module.name)))

    def embed(self, ids: str, embedding: Embedding) -> None:
        """Looks an ids input up."""
        self.call(_Callable(self.register(embedding), 0, embedding.dim, True), ids)

    def earlier(self) -> str:
        """A value of the block, the head or an older one."""
        return self.tape.pick([*reversed(self.widths)])

    def apply(self, value: str) -> str:
        """A leaf on ``value``, or a relu when the model has enough leaves."""
        if self.growth.num_leaves >= self.growth.max_leaves:
            return self.op("relu", value)
        return self.call_leaf(value, self.growth.leaves.any(self.widths[value]))

    def project(self, value: str, width: int) -> str:
        """``value`` itself, or a leaf on it, of ``width`` features."""
        have = self.widths[value]
        return value if have == width else self.call_leaf(value, self.growth.leaves.to_width(have, width))

    def join(self, op: str, left: str, right: str) -> None:
        """The head becomes ``op`` of two values."""
        if op == "concat":
            if self.widths[left] + self.widths[right] > _WIDEST:
                left, right = self.project(left, 4), self.project(right, 4)
        else:
            left = self.project(left, self.widths[right])
        self.head = self.op(op, left, right)

    def merge(self, left: str, right: str) -> None:
        """The head becomes some combination of two values."""
        kinds = [op for op in ("add", "concat", "mul") if op in self.growth.swarm] or ["add"]
        if self.growth.leaves.exact and kinds != ["mul"]:
            kinds = [op for op in kinds if op != "mul"]
        self.join(self.tape.pick(kinds), left, right)

    def repeat(self, *, grad: bool) -> None:
        """Calls a child a second time, with or without gradients."""
        if not self.called:
            self.head = self.call_leaf(self.head, self.growth.leaves.with_parameters(self.widths[self.head]))
        module = self.tape.pick(self.called)
        if grad:
            self.head = self.call(module, self.project(self.head, module.width))
            return
        fitting = [value for value, width in self.widths.items() if width == module.width]
        argument = self.tape.pick(fitting) if fitting else self.project(self.head, module.width)
        self.merge(self.head, self.call(module, argument, grad=False))

    def alias(self) -> None:
        """Registers a module of the model here once more, and calls it."""
        if not self.growth.reusable:
            self.extend("leaf", more=True)
        target = self.tape.pick(self.growth.reusable)
        name = self.growth.name("shared")
        self.children.append(Child(name=name, module=Alias(target=target.name)))
        self.head = self.call(target._replace(name=name), self.project(self.head, target.width))

    def nest(self, tasks: list[str]) -> None:
        """A nested block on the head and perhaps a second value, and a call of it."""
        arguments = (self.head, self.earlier()) if self.tape.chance(25) else (self.head,)
        names = ("x",) if len(arguments) == 1 else ("x0", "x1")
        name = self.growth.name("block")
        inner = _BlockBuilder(self.growth, join(self.path, name), names, self.depth + 1)
        inner.widths = {n: self.widths[a] for n, a in zip(names, arguments, strict=True)}
        inner.start()
        inner.grow(tasks if "leaf" in tasks else ["leaf", *tasks])
        block = inner.finish("several_outputs" in self.growth.swarm and self.tape.chance(60))
        self.children.append(Child(name=name, module=block))
        outs = [inner.widths[v] for v in block.outputs]
        node = f"h{len(self.nodes)}"
        self.nodes.append(Call(name=node, module=name, args=arguments))
        results = {node if block.returns == "tensor" else f"{node}.{i}": out for i, out in enumerate(outs)}
        self.widths |= results
        self.trained |= {r for r, v in zip(results, block.outputs, strict=True) if v in inner.trained}
        if block.returns == "tensor" and len(arguments) == 1:
            trained = block.outputs[0] in inner.trained
            self.offer(_Callable(name, self.widths[arguments[0]], outs[0], trained))
        self.head, *others = results
        for other in others:
            if self.tape.chance(40):
                self.merge(self.head, other)

    def finish(self, several_outputs: bool) -> Block:
        """The block; its first output is the head."""
        outputs = [self.head]
        if several_outputs and self.tape.chance(80):
            others = [v for v in reversed(self.widths) if v != self.head]
            outputs += self.tape.shuffled(others)[: 1 + self.tape.below(2)]
        kinds = ("tuple", "dict") if len(outputs) > 1 else ("tensor", *["tensor"] * 11, "tuple", "dict")
        return Block(
            children=tuple(self.children),
            nodes=tuple(self.nodes),
            outputs=tuple(outputs),
            inputs=self.inputs,
            returns=self.tape.pick(kinds),  # type: ignore[arg-type]
        )
