"""What follows from a Case without running it: widths, parameter shapes, owners of parameters.

:func:`facts` is the one place where widths are inferred. It raises :class:`InvalidCase` where the
graph does not fit together, with the path and the two widths.
"""

from __future__ import annotations

import dataclasses
import functools
import keyword
import math
import re
from collections.abc import Mapping

from fuzzshard.case.case import Case
from fuzzshard.case.graph import (
    Alias,
    Attention,
    BatchNorm,
    Block,
    Call,
    Conv1d,
    Conv2d,
    Embedding,
    Leaf,
    Linear,
    Module,
    TensorOp,
    join,
    resolve,
    walk,
)
from fuzzshard.case.leaves import Shape, leaf_parameters, needs_sequence
from fuzzshard.case.paths import is_within
from fuzzshard.errors import InvalidCase

DEFAULT_WIDTH = 4
"""Width of a module that is never called and whose block has no float input to size it by."""


_PLAIN_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_RESERVED = {
    *("self", "torch", "nn", "model", "forward", "train", "eval", "training", "to", "type", "half"),
    *("float", "double", "cpu", "cuda", "apply", "compile", "modules", "parameters", "buffers"),
    *("children", "state_dict", "unshard", "reshard", "module", "path", "inputs"),
}
"""Names that would shadow what the generated source or ``nn.Module`` itself uses."""


@dataclasses.dataclass(frozen=True)
class Value:
    """The type of one value: a float tensor with ``size`` features, or ids below ``size``.

    ``patches`` is the length of the axis that a two-dimensional convolution puts before the features.
    """

    size: int
    ids: bool = False
    patches: int = 0

    def __str__(self) -> str:
        patches = f" in {self.patches} patches" if self.patches else ""
        return f"ids below {self.size}" if self.ids else f"width {self.size}{patches}"


@dataclasses.dataclass(frozen=True)
class Facts:
    """The inferred facts of a Case. All paths are canonical: aliases and ties are resolved."""

    modules: Mapping[str, Module]
    """Every module by path, parents first, in registration order; without aliases."""
    input_values: Mapping[str, tuple[Value, ...]]
    """What each module is called with."""
    output_values: Mapping[str, tuple[Value, ...]]
    """What each module returns."""
    parameters: Mapping[str, Shape]
    """Every distinct parameter by the FQN that ``named_parameters`` gives it, in that order."""
    called: frozenset[str]
    """Modules that a forward of the root calls."""
    owners: Mapping[str, int | None]
    """The wrap group (index into ``case.wrap``) that manages each parameter; None if no group does."""

    def width(self, path: str) -> int:
        """The width of the first value that a module is called with."""
        values = self.input_values[path]
        return values[0].size if values else DEFAULT_WIDTH


class _Inference:
    """Walks the DAG of the root, then sizes the modules that no call reaches."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.inputs: dict[str, tuple[Value, ...]] = {}
        self.outputs: dict[str, tuple[Value, ...]] = {}
        self.active: list[str] = []

    def run(self) -> frozenset[str]:
        root_inputs = tuple(Value(t.size, t.kind == "ids") for t in self.case.inputs.tensors)
        self.visit("", self.case.model, root_inputs)
        called = frozenset(self.inputs)
        for path, module in walk(self.case.model):
            if isinstance(module, Block):
                self.size_uncalled(path, module)
        return called

    def size_uncalled(self, path: str, block: Block) -> None:
        """An uncalled module is sized as if it were called on its block's first float input."""
        floats = [v for v in self.inputs[path] if not v.ids]
        for child in block.children:
            child_path = join(path, child.name)
            if child_path in self.inputs or isinstance(child.module, Alias):
                continue
            value = (floats or [Value(DEFAULT_WIDTH)])[0]
            if isinstance(child.module, Embedding):
                value = Value(child.module.vocab, ids=True)
            arity = len(child.module.inputs) if isinstance(child.module, Block) else 1
            self.visit(child_path, child.module, (value,) * arity)

    def visit(self, path: str, module: Module, args: tuple[Value, ...]) -> tuple[Value, ...]:
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
            result = self.block(path, module, args)
            self.active.pop()
        else:
            assert not isinstance(module, Alias)
            result = (self.leaf(path, module, args),)
        self.outputs[path] = result
        return result

    def leaf(self, path: str, leaf: Leaf, args: tuple[Value, ...]) -> Value:
        if len(args) != 1:
            raise InvalidCase(f"leaf {path!r} takes one argument, not {len(args)}", "pass one value")
        (arg,) = args
        if isinstance(leaf, Embedding):
            if not arg.ids or arg.size > leaf.vocab:
                raise InvalidCase(
                    f"embedding {path!r} of {leaf.vocab} rows is called with {arg}", "feed it ids"
                )
            return Value(leaf.dim)
        if arg.ids:
            raise InvalidCase(f"{path!r} is called with {arg}", "only an embedding takes ids")
        if needs_sequence(leaf) and self.case.inputs.seq < 1:
            raise InvalidCase(f"{path!r} needs a sequence axis", "set inputs.seq to at least 1")
        if isinstance(leaf, Conv2d):
            return self.patches(path, leaf, arg)
        if arg.patches and isinstance(leaf, BatchNorm):
            raise InvalidCase(f"batch norm {path!r} is called with patches", "put it before the convolution")
        if isinstance(leaf, Attention) and arg.size % leaf.heads:
            raise InvalidCase(f"{path!r}: {leaf.heads} heads do not divide width {arg.size}", "change heads")
        return dataclasses.replace(arg, size=leaf.out) if isinstance(leaf, Linear | Conv1d) else arg

    def patches(self, path: str, leaf: Conv2d, arg: Value) -> Value:
        side = math.isqrt(arg.size // leaf.channels)
        if leaf.channels * side * side != arg.size or side % leaf.kernel or arg.patches:
            raise InvalidCase(
                f"{path!r} is called with {arg}, no square image of {leaf.channels} channels that "
                f"{leaf.kernel} divides",
                "match channels * side * side",
            )
        if self.case.inputs.seq:
            raise InvalidCase(f"{path!r} takes an image, not a sequence of them", "set inputs.seq to 0")
        return Value(leaf.out, patches=(side // leaf.kernel) ** 2)

    def block(self, path: str, block: Block, args: tuple[Value, ...]) -> tuple[Value, ...]:
        if len(args) != len(block.inputs):
            raise InvalidCase(
                f"block {path!r} takes {len(block.inputs)} arguments, not {len(args)}", "match them"
            )
        values = dict(zip(block.inputs, args, strict=True))

        def read(name: str) -> Value:
            if name not in values:
                raise InvalidCase(f"block {path!r} reads {name!r} before it exists", "order the nodes")
            return values[name]

        for node in block.nodes:
            if node.name in values:
                raise InvalidCase(f"block {path!r} defines {node.name!r} twice", "rename a node")
            node_args = tuple(read(a) for a in node.args)
            if isinstance(node, TensorOp):
                values[node.name] = _tensor_op(path, node, node_args, self.case.inputs.seq)
                continue
            values |= self.call(path, node, node_args)
        if not block.outputs or (block.returns == "tensor" and len(block.outputs) != 1):
            raise InvalidCase(f"block {path!r} returns {len(block.outputs)} values", 'use returns="tuple"')
        outputs = tuple(read(name) for name in block.outputs)
        if any(v.ids for v in outputs):
            raise InvalidCase(f"block {path!r} returns ids", "return float values")
        return outputs

    def call(self, path: str, node: Call, args: tuple[Value, ...]) -> dict[str, Value]:
        """The values that a call makes, which are the same whatever alternative is called."""
        made: list[dict[str, Value]] = []
        for name in node.modules:
            found = resolve(self.case.model, join(path, name)) if "." not in name else None
            if found is None:
                raise InvalidCase(f"block {path!r} calls {name!r}, which it does not have", "add it")
            results = self.visit(*found, args)
            several = isinstance(found[1], Block) and found[1].returns != "tensor"
            names = [f"{node.name}.{i}" for i in range(len(results))] if several else [node.name]
            made.append(dict(zip(names, results, strict=True)))
            if isinstance(found[1], Block) and node.alternatives and found[1].returns != "tensor":
                raise InvalidCase(
                    f"alternative {name!r} in block {path!r} returns several values", "return one"
                )
        if any(values != made[0] for values in made):
            raise InvalidCase(
                f"the alternatives of {node.name!r} in block {path!r} differ in width", "match them"
            )
        return made[0]


def _tensor_op(path: str, node: TensorOp, args: tuple[Value, ...], seq: int) -> Value:
    if any(v.ids for v in args):
        raise InvalidCase(f"{node.op!r} in block {path!r} reads ids", "only an embedding takes ids")
    unary = node.op in ("detach", "relu", "tanh")
    count = 1 if unary else {"iadd": 2, "attend": 3}.get(node.op, len(args))
    if not args or len(args) != count:
        raise InvalidCase(f"{node.op!r} in block {path!r} has {len(args)} arguments", "match the op")
    if node.op == "attend" and (seq < 1 or node.head_dim < 1 or args[0].size % node.head_dim):
        raise InvalidCase(
            f"'attend' in block {path!r} needs a sequence, and heads of {node.head_dim} that divide "
            f"width {args[0].size}",
            "set inputs.seq, or change head_dim",
        )
    if len({v.patches for v in args}) > 1:
        raise InvalidCase(f"{node.op!r} in block {path!r} joins patches and plain values", "make them alike")
    if node.op == "concat":
        return dataclasses.replace(args[0], size=sum(v.size for v in args))
    if len({v.size for v in args}) > 1:
        sizes = " and ".join(str(v.size) for v in args)
        raise InvalidCase(f"{node.op!r} in block {path!r} joins widths {sizes}", "make them equal")
    return args[0]


def _all_parameters(case: Case, inference: _Inference) -> dict[str, Shape]:
    """Parameters in ``named_parameters`` order with ties removed; checks the ties."""
    shapes: dict[str, Shape] = {}
    for path, module in walk(case.model):
        if not isinstance(module, Block | Alias):
            width = inference.inputs[path][0].size
            shapes |= {join(path, n): s for n, s in leaf_parameters(module, width).items()}
    for tie in case.ties:
        for fqn in (tie.parameter, tie.source):
            if fqn not in shapes:
                raise InvalidCase(
                    f"tied parameter {fqn!r} does not exist or is tied already", "remove the tie"
                )
        if shapes[tie.parameter] != shapes[tie.source] or tie.parameter == tie.source:
            raise InvalidCase(
                f"cannot tie {tie.parameter!r} {shapes[tie.parameter]} to "
                f"{tie.source!r} {shapes[tie.source]}",
                "tie parameters of one shape",
            )
        if any(tie.parameter == other.source for other in case.ties):
            raise InvalidCase(
                f"tied parameter {tie.parameter!r} is the source of another tie", "tie to its source"
            )
        order = list(shapes)
        if order.index(tie.source) > order.index(tie.parameter):
            raise InvalidCase(f"tie source {tie.source!r} comes after {tie.parameter!r}", "swap the two")
        del shapes[tie.parameter]
    return shapes


def _owners(case: Case, parameters: Mapping[str, Shape]) -> dict[str, int | None]:
    """``fully_shard`` manages the parameters of a module that an earlier call does not manage yet.

    A module or parameter registered at several places belongs to the group that is applied first
    (``_get_managed_modules`` in torch/distributed/fsdp/_fully_shard/_fsdp_init.py).
    """
    places: dict[str, list[str]] = {fqn: [fqn] for fqn in parameters}
    for tie in case.ties:
        places[tie.source].append(tie.parameter)
    for path, module in walk(case.model):
        if isinstance(module, Alias):
            for fqn in parameters:
                if is_within(fqn, module.target):
                    places[fqn].append(path + fqn[len(module.target) :])
    owners: dict[str, int | None] = dict.fromkeys(parameters)
    for index, group in enumerate(case.wrap):
        for fqn, paths in places.items():
            if any(is_within(p, ignored) for p in paths for ignored in case.ignored):
                continue
            if owners[fqn] is None and any(is_within(p, m) for p in paths for m in group.modules):
                owners[fqn] = index
    return owners


@functools.lru_cache(maxsize=512)
def facts(case: Case) -> Facts:
    """Infers everything; raises :class:`InvalidCase` where the graph does not fit together."""
    _check_names(case.model)
    inference = _Inference(case)
    called = inference.run()
    parameters = _all_parameters(case, inference)
    return Facts(
        modules={p: m for p, m in walk(case.model) if not isinstance(m, Alias)},
        input_values=inference.inputs,
        output_values=inference.outputs,
        parameters=parameters,
        called=called,
        owners=_owners(case, parameters),
    )


def _check_names(root: Block) -> None:
    for path, module in walk(root):
        if isinstance(module, Alias) and resolve(root, path) is None:
            raise InvalidCase(f"alias {path!r} names {module.target!r}, which is not there", "remove it")
        if not isinstance(module, Block):
            continue
        names = [c.name for c in module.children]
        methods = [module.method] if module.method != "forward" else []
        local = [*module.inputs, *(n.name for n in module.nodes), *methods]
        for name in (*names, *local):
            if not _PLAIN_NAME.fullmatch(name) or name in _RESERVED or keyword.iskeyword(name):
                raise InvalidCase(f"{name!r} in block {path!r} is not a usable name", "rename it")
        if len(set(names)) < len(names):
            raise InvalidCase(f"block {path!r} registers a name twice", "rename a child")
        if module.method in names:
            raise InvalidCase(f"block {path!r} has a child and a method {module.method!r}", "rename one")
