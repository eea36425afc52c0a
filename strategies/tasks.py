"""The tasks that grow a block, and nested blocks."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.analysis.widths import DEFAULT_WIDTH
from fuzzshard.case.graph import Alias, Block, Call, Child, join
from fuzzshard.parts.leaf import Leaf
from fuzzshard.parts.leaves import affine
from fuzzshard.strategies.builder import BlockBuilder, Callable
from fuzzshard.strategies.swarm import is_cut

_MAX_DEPTH = 3
_OF_CHAINS = ("leaf", "nested", "second_nested", "unused_module", "adapter", "attention")
"""What leaves a root a chain of modules."""
_WIDEST = 24
_METHODS = ("encode", "features")
_PASSINGS = (("keyword", 5), ("dataclass", 2), ("tuple", 2), ("dict", 2))
_RETURNS = ("dataclass", "namedtuple", "list", "dict", "tuple")


class BlockGrower(BlockBuilder):
    """Carries out tasks at the head of a block."""

    @property
    def is_chain(self) -> bool:
        """Whether an engine cuts the block into stages, so that it is a chain of modules."""
        return not self.path and is_cut(self.growth.swarm)

    @property
    def is_plain(self) -> bool:
        """Whether it is such a chain, or is called by one."""
        return self.depth < 2 and is_cut(self.growth.swarm)

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
            taken = self.tape.within(self.carry_out, task, rest)
            del rest[:taken]

    def carry_out(self, task: str, rest: list[str]) -> int:
        """Carries out one task; how many of those after it a nested block has taken."""
        if not self.tape.keeps():
            return 0
        if self.is_chain and task not in _OF_CHAINS:  # a block of the chain may do so
            self.nest([task, *rest[:1]])
            return len(rest[:1])
        if task not in ("nested", "second_nested"):
            self.extend(task, more="leaf" in rest)
        elif self.depth < _MAX_DEPTH - 1:
            count = self.tape.below(min(len(rest), 5) + 1)
            within = ["nested"] * (self.is_chain and task == "second_nested")
            self.nest([*within, *rest[:count]])
            return count
        return 0

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
            case "iadd":
                self.add_in_place()
            case "attend":
                self.attend()
            case "alternatives":
                self.alternatives()
            case "adapter":
                self.adapt()
            case "parallel_pair":
                self.linear()
                self.head = self.op("relu", self.head)
                self.linear()
            case "experts" | "attention" | "operators":
                leaf = self.growth.leaves.for_role(task, self.widths[head])
                self.head = self.call_leaf(head, leaf)
            case "parallel_norm":
                self.linear()
                first = self.head
                leaf = self.growth.leaves.for_role("norm", self.widths[first])
                self.head = norm = self.call_leaf(first, leaf)
                self.linear()
                del self.widths[first], self.widths[norm]  # a shard is for the next layer alone

    def train(self) -> None:
        """Makes sure that a backward from the head reaches a parameter."""
        if self.head not in self.trained:
            self.head = self.call_leaf(
                self.head, self.growth.leaves.with_parameters(self.widths[self.head])
            )

    def linear(self) -> None:
        """Add a linear layer on the head whose width a tensor-parallel axis divides."""
        self.head = self.call_leaf(
            self.head, affine(self.tape.pick((4, 8)), bias=not self.tape.chance(25))
        )

    def join(self, op: str, left: str, right: str) -> None:
        """Make the head ``op`` of two values."""
        if op == "concat":
            if self.widths[left] + self.widths[right] > _WIDEST:
                left, right = self.project(left, 4), self.project(right, 4)
        else:
            left = self.project(left, self.widths[right])
        self.head = self.op(op, left, right)

    def merge(self, left: str, right: str) -> None:
        """Make the head some combination of two values."""
        kinds = [op for op in ("add", "concat", "mul") if op in self.growth.swarm] or ["add"]
        if self.growth.leaves.exact and kinds != ["mul"]:
            kinds = [op for op in kinds if op != "mul"]
        self.join(self.tape.pick(kinds), left, right)

    def repeat(self, *, grad: bool) -> None:
        """Calls a child a second time, with or without gradients."""
        if not self.called:
            self.head = self.call_leaf(
                self.head, self.growth.leaves.with_parameters(self.widths[self.head])
            )
        module = self.tape.pick(self.called)
        if grad:
            self.head = self.call(module, self.project(self.head, module.width))
            return
        fitting = [value for value, width in self.widths.items() if width == module.width]
        argument = self.tape.pick(fitting) if fitting else self.project(self.head, module.width)
        self.merge(self.head, self.call(module, argument, grad=False))

    def add_in_place(self) -> None:
        """Adds what a child makes without gradients to a new value that no one else has read or
        saved.

        Autograd refuses a backward through what was changed in place: the new value is the result
        of a leaf that does not save it, and only calls without gradients have read it.
        """
        leaves = self.growth.leaves
        width = self.widths[self.head]
        fresh = self.call_leaf(self.head, leaves.with_parameters(width))
        fitting = [module for module in self.called if module.out == self.widths[fresh]]
        module = self.tape.pick(fitting)
        argument = fresh
        if module.width != self.widths[fresh]:
            values = [v for v, width in self.widths.items() if width == module.width]
            argument = self.tape.pick(values) if values else self.project(self.head, module.width)
        added = self.call(module, argument, grad=False)
        self.head = self.op("iadd", fresh, added)
        del self.widths[fresh]

    def attend(self) -> None:
        """Add attention whose query, key and value are values of the block."""
        query = self.apply(self.head)
        width = self.widths[query]
        key, value = (self.project(self.earlier(), width) for _ in range(2))
        head_dim = self.tape.pick([n for n in (width, 1, 2) if width % n == 0])
        self.head = self.op("attend", query, key, value, head_dim=head_dim)

    def alternatives(self) -> None:
        """Add a call of one of two or three children, as the path of the block says."""
        leaves = self.growth.leaves
        width = self.widths[self.head]
        first = leaves.with_parameters(width)
        modules = [self.made(first, width)]
        for _ in range(1 + self.tape.chance(25)):
            same = self.tape.chance(30)
            leaf = first if same else leaves.to_width(width, modules[0].out, trains=True)
            modules.append(self.made(leaf, width))
        names = tuple(module.name for module in modules[1:])
        self.head = self.call(modules[0], self.head, alternatives=names)

    @property
    def reusable(self) -> list[Callable]:
        """The modules that may be registered here, too: stages share none."""
        cut, top = is_cut(self.growth.swarm), self.path.partition(".")[0]
        reusable = self.growth.reusable
        return [m for m in reusable if not cut or m.name.partition(".")[0] == top]

    def alias(self) -> None:
        """Registers a module of the model here once more, and calls it."""
        if not self.reusable:
            self.extend("leaf", more=True)
        target = self.tape.pick(self.reusable)
        name = self.growth.name("shared")
        self.children.append(Child(name=name, module=Alias(target=target.name)))
        self.head = self.call(target._replace(name=name), self.project(self.head, target.width))

    def adapt(self) -> None:
        """Add a linear layer with a low-rank adapter beside it, in a block of its own."""
        inner, width = self.inner("adapted", self.head), self.widths[self.head]
        out, rank = self.tape.pick(self.growth.leaves.pool), self.tape.pick((1, 2))
        base = inner.made(affine(out, bias=not self.tape.chance(40)), width)
        down = inner.made(affine(rank, bias=False), width)
        up = inner.made(affine(out, bias=False), rank)
        adapted = inner.call(base, "x")
        inner.head = inner.op("add", adapted, inner.call(up, inner.call(down, "x")))
        self.head = self.call_inner(inner, self.head, trained=True)

    def inner(self, kind: str, argument: str) -> BlockGrower:
        """Return a block under construction that takes one value."""
        path = join(self.path, self.growth.name(kind))
        inner = BlockGrower(self.growth, path, ("x",), self.depth + 1)
        inner.widths["x"] = self.widths[argument]
        return inner

    def call_inner(self, inner: BlockGrower, argument: str, *, trained: bool) -> str:
        """Return a call of such a block, which is finished; the value it makes."""
        name = inner.path.rpartition(".")[2]
        block = inner.finish(several_outputs=False, returns="tensor")
        self.children.append(Child(name=name, module=block))
        module = Callable(name, self.widths[argument], inner.widths[inner.head], trained)
        self.offer(module)
        value = self.call(module, argument)
        if argument in self.trained:
            self.trained.add(value)
        return value

    @override
    def call_leaf(self, argument: str, leaf: Leaf) -> str:
        """Call it in a block of its own where it wants the features before the sequence axis, and
        the modules of a chain get what the ones before return.
        """
        is_second = self.growth.leaves.sequence and "channels" in leaf.takes
        if not (self.is_chain and is_second):
            return super().call_leaf(argument, leaf)
        inner = self.inner("block", argument)
        inner.head = inner.call_leaf("x", leaf)
        return self.call_inner(inner, argument, trained=leaf.has_parameters)

    def convolve(self, image: str, leaf: Leaf, out: int) -> None:
        """Cuts an image input into patches, in a block of its own where blocks have methods."""
        if "method" not in self.growth.swarm or not self.tape.chance(70):
            self.read(image, leaf, out)
            return
        name = self.growth.name("block")
        inner = BlockGrower(self.growth, join(self.path, name), ("x",), self.depth + 1)
        inner.read_here("x", leaf, out)
        block = inner.finish(several_outputs=False, returns="tensor")
        self.children.append(Child(name=name, module=block))
        self.call(Callable(name, 0, out, True), image)

    def read_here(self, image: str, leaf: Leaf, out: int) -> None:
        """Cuts an image into patches, which become the head."""
        self.read(image, leaf, out)
        (self.head,) = self.widths

    def nest(self, tasks: list[str]) -> None:
        """Add a nested block on the head and perhaps a second value, and a call of it."""
        several = not self.is_chain and self.tape.chance(25)
        arguments = (self.head, self.earlier()) if several else (self.head,)
        names = ("x",) if len(arguments) == 1 else ("x0", "x1")
        name = self.growth.name("block")
        inner = BlockGrower(self.growth, join(self.path, name), names, self.depth + 1)
        inner.widths = {n: self.widths[a] for n, a in zip(names, arguments, strict=True)}
        inner.start()
        inner.grow(tasks if "leaf" in tasks else ["leaf", *tasks])
        block = inner.finish(
            several_outputs="several_outputs" in self.growth.swarm and self.tape.chance(60)
        )
        self.children.append(Child(name=name, module=block))
        outs = [inner.widths[v] for v in block.outputs]
        node = f"h{len(self.nodes)}"
        self.nodes.append(Call(name=node, module=name, args=arguments))
        results = {
            node if block.returns == "tensor" else f"{node}.{i}": out for i, out in enumerate(outs)
        }
        self.widths |= results
        self.trained |= {
            r for r, v in zip(results, block.outputs, strict=True) if v in inner.trained
        }
        if block.returns == "tensor" and len(arguments) == 1:
            trained = block.outputs[0] in inner.trained
            self.offer(Callable(name, self.widths[arguments[0]], outs[0], trained))
        self.head, *others = results
        for other in others:
            if self.tape.chance(40):
                self.merge(self.head, other)

    def finish(self, *, several_outputs: bool, returns: str | None = None) -> Block:
        """Return the block; its first output is the head."""
        outputs = [self.head]
        if several_outputs and not self.is_plain and self.tape.chance(80):
            others = [v for v in reversed(self.widths) if v != self.head]
            outputs += self.tape.shuffled(others)[: 1 + self.tape.below(2)]
        swarm = self.growth.swarm
        passing = "positional"
        if self.is_plain:
            pass
        elif "structured_passing" in swarm and self.tape.chance(75):
            passing = self.tape.weighted(_PASSINGS)
        elif "tensor" in swarm and len(self.inputs) > 1 and self.tape.chance(60):
            passing = "keyword"  # some of which a style prepares
        method = "forward"
        if self.path and not self.is_plain and "method" in swarm and self.tape.chance(85):
            method = self.tape.pick(_METHODS)
        return Block(
            children=tuple(self.children),
            nodes=tuple(self.nodes),
            outputs=tuple(outputs),
            inputs=self.inputs,
            returns=returns or self.returned(len(outputs)),  # type: ignore[arg-type]
            passing=passing,  # type: ignore[arg-type]
            method=method,
        )

    def returned(self, num_outputs: int) -> str:
        """Return how a block returns its outputs."""
        if self.is_plain:
            return "tensor"
        if "structured_returns" in self.growth.swarm and self.tape.chance(70):
            return self.tape.pick(_RETURNS)
        kinds = (
            ("tuple", "dict") if num_outputs > 1 else ("tensor", *["tensor"] * 11, "tuple", "dict")
        )
        return self.tape.pick(kinds)
