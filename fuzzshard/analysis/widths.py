"""Widths: what every value of a Case's forward DAGs is, inferred from its inputs and its leaves.

Raises :class:`InvalidCase` where the graph does not fit together, with the path and the two
widths.
"""

from __future__ import annotations

import dataclasses

from fuzzshard.case.case import Inputs
from fuzzshard.case.graph import Alias, Block, Call, Module, TensorOp, join, resolve, walk
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaf import Leaf, Value

DEFAULT_WIDTH = 4
"""Width of a module that is never called and whose block has no float input to size it by."""


class Inference:
    """Walks the DAG of the root, then sizes the modules that no call reaches."""

    def __init__(self, model: Block, inputs: Inputs) -> None:
        self.model, self.given = model, inputs
        self.inputs: dict[str, tuple[Value, ...]] = {}
        self.outputs: dict[str, tuple[Value, ...]] = {}
        self.active: list[str] = []

    def run(self) -> frozenset[str]:
        """Fills ``inputs`` and ``outputs`` by path; the modules that a forward of the root
        calls.
        """
        root_inputs = tuple(Value(t.size, t.kind == "ids") for t in self.given.tensors)
        self._visit("", self.model, root_inputs)
        called = frozenset(self.inputs)
        for path, module in walk(self.model):
            if isinstance(module, Block):
                self._size_uncalled(path, module)
        return called

    def _size_uncalled(self, path: str, block: Block) -> None:
        """An uncalled module is sized as if it were called on its block's first float input."""
        floats = [v for v in self.inputs[path] if not v.ids]
        for child in block.children:
            child_path = join(path, child.name)
            if child_path in self.inputs or isinstance(child.module, Alias):
                continue
            value = (floats or [Value(DEFAULT_WIDTH)])[0]
            if isinstance(child.module, Leaf):
                value = child.module.example(value)
            arity = len(child.module.inputs) if isinstance(child.module, Block) else 1
            self._visit(child_path, child.module, (value,) * arity)

    def _visit(self, path: str, module: Module, args: tuple[Value, ...]) -> tuple[Value, ...]:
        if path in self.active:
            raise InvalidCase(f"module {path!r} calls itself", "an alias may not name an ancestor")
        if path in self.inputs:
            if self.inputs[path] != args:
                before, now = (", ".join(map(str, v)) for v in (self.inputs[path], args))
                raise InvalidCase(
                    f"module {path!r} is called with {before} and with {now}",
                    "a reused module needs one width",
                )
            return self.outputs[path]
        self.inputs[path] = args
        if isinstance(module, Block):
            self.active.append(path)
            result = self._block(path, module, args)
            self.active.pop()
        else:
            assert not isinstance(module, Alias)
            result = (self._leaf(path, module, args),)
        self.outputs[path] = result
        return result

    def _leaf(self, path: str, leaf: Leaf, args: tuple[Value, ...]) -> Value:
        if len(args) != 1:
            raise InvalidCase(
                f"leaf {path!r} takes one argument, not {len(args)}", "pass one value"
            )
        (arg,) = args
        for misfit in leaf.misfits(path, arg, self.given.seq):
            raise InvalidCase(*misfit)
        return leaf.result(arg)

    def _block(self, path: str, block: Block, args: tuple[Value, ...]) -> tuple[Value, ...]:
        if len(args) != len(block.inputs):
            raise InvalidCase(
                f"block {path!r} takes {len(block.inputs)} arguments, not {len(args)}",
                "match them",
            )
        values = dict(zip(block.inputs, args, strict=True))

        def read(name: str) -> Value:
            if name not in values:
                raise InvalidCase(
                    f"block {path!r} reads {name!r} before it exists", "order the nodes"
                )
            return values[name]

        for node in block.nodes:
            if node.name in values:
                raise InvalidCase(f"block {path!r} defines {node.name!r} twice", "rename a node")
            node_args = tuple(read(a) for a in node.args)
            if isinstance(node, TensorOp):
                values[node.name] = _tensor_op(path, node, node_args, self.given.seq)
                continue
            values |= self._call(path, node, node_args)
        if not block.outputs or (block.returns == "tensor" and len(block.outputs) != 1):
            raise InvalidCase(
                f"block {path!r} returns {len(block.outputs)} values", 'use returns="tuple"'
            )
        outputs = tuple(read(name) for name in block.outputs)
        if any(v.ids for v in outputs):
            raise InvalidCase(f"block {path!r} returns ids", "return float values")
        return outputs

    def _call(self, path: str, node: Call, args: tuple[Value, ...]) -> dict[str, Value]:
        """The values that a call makes, which are the same whatever alternative is called."""
        made: list[dict[str, Value]] = []
        for name in node.modules:
            found = resolve(self.model, join(path, name)) if "." not in name else None
            if found is None:
                raise InvalidCase(
                    f"block {path!r} calls {name!r}, which it does not have", "add it"
                )
            results = self._visit(*found, args)
            several = isinstance(found[1], Block) and found[1].returns != "tensor"
            names = [f"{node.name}.{i}" for i in range(len(results))] if several else [node.name]
            made.append(dict(zip(names, results, strict=True)))
            if isinstance(found[1], Block) and node.alternatives and found[1].returns != "tensor":
                raise InvalidCase(
                    f"alternative {name!r} in block {path!r} returns several values", "return one"
                )
        if any(values != made[0] for values in made):
            raise InvalidCase(
                f"the alternatives of {node.name!r} in block {path!r} differ in width",
                "match them",
            )
        return made[0]


def _tensor_op(path: str, node: TensorOp, args: tuple[Value, ...], seq: int) -> Value:
    if any(v.ids for v in args):
        raise InvalidCase(
            f"{node.op!r} in block {path!r} reads ids", "only an embedding takes ids"
        )
    unary = node.op in ("detach", "relu", "tanh")
    count = 1 if unary else {"iadd": 2, "attend": 3}.get(node.op, len(args))
    if not args or len(args) != count:
        raise InvalidCase(
            f"{node.op!r} in block {path!r} has {len(args)} arguments", "match the op"
        )
    if node.op == "attend" and (seq < 1 or node.head_dim < 1 or args[0].size % node.head_dim):
        raise InvalidCase(
            f"'attend' in block {path!r} needs a sequence, and heads of {node.head_dim} that "
            f"divide width {args[0].size}",
            "set inputs.seq, or change head_dim",
        )
    if len({v.patches for v in args}) > 1:
        raise InvalidCase(
            f"{node.op!r} in block {path!r} joins patches and plain values", "make them alike"
        )
    if node.op == "concat":
        return dataclasses.replace(args[0], size=sum(v.size for v in args))
    if len({v.size for v in args}) > 1:
        sizes = " and ".join(str(v.size) for v in args)
        raise InvalidCase(f"{node.op!r} in block {path!r} joins widths {sizes}", "make them equal")
    return args[0]
