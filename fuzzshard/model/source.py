"""Case -> the Python source of its model. The source that ran is the source the reproducer prints.

Needs no torch: the coordinator prints scripts, ranks execute the same text.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterable, Iterator, Mapping

from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts, facts
from fuzzshard.case.graph import (
    MLP,
    Activation,
    Alias,
    Attention,
    BatchNorm,
    Block,
    Call,
    Conv1d,
    Conv2d,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    Module,
    RawParameter,
    RMSNorm,
    TensorOp,
    join,
    resolve,
    walk,
)

MODEL_CLASS = "Model"

_TAKEN_CLASSES = (MODEL_CLASS, "Attention", "Patches", "Scale", "Matrix")
"""Class names that a block may not have."""

_MLP = """
class MLP(nn.Module):
    def __init__(self, dim, hidden, bias=True):
        super().__init__()
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.down = nn.Linear(hidden, dim, bias=bias)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))
"""

_ATTENTION = """
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        mask = torch.ones(x.shape[1], x.shape[1], device=x.device).triu(1).bool()
        out = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        return self.proj(out.transpose(1, 2).flatten(2))
"""

_PATCHES = """
class Patches(nn.Conv2d):
    def forward(self, x):
        side = int((x.shape[1] // self.in_channels) ** 0.5)
        images = x.view(-1, self.in_channels, side, side)
        return super().forward(images).flatten(2).transpose(1, 2)
"""

_ATTEND = """
def attend(q, k, v, head_dim):
    q, k, v = (t.unflatten(-1, (-1, head_dim)).transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-2, -1) * head_dim**-0.5
    mask = torch.ones(q.shape[2], q.shape[2], device=q.device).triu(1).bool()
    out = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
    return out.transpose(1, 2).flatten(2)
"""

_ADD_IN_PLACE = """
def add_in_place(x, y):
    with torch.no_grad():
        return x.add_(y)
"""

_SCALE = """
class Scale(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * self.weight
"""

_MATRIX = """
class Matrix(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(dim))

    def forward(self, x):
        return x @ self.weight
"""


def _helper(module: Module) -> str | None:
    """The source of the class that a leaf needs beside ``torch.nn``."""
    match module:
        case MLP():
            return _MLP
        case Conv2d():
            return _PATCHES
        case Attention():
            return _ATTENTION
        case RawParameter(matrix=matrix):
            return _MATRIX if matrix else _SCALE
        case _:
            return None


def constructor(module: Module, width: int, class_name: str) -> str:
    """The expression that builds a module called with values of ``width`` features."""
    match module:
        case Linear(out=out, bias=bias):
            return f"nn.Linear({width}, {out}{'' if bias else ', bias=False'})"
        case LayerNorm(bias=bias):
            return f"nn.LayerNorm({width}{'' if bias else ', bias=False'})"
        case RMSNorm():
            return f"nn.RMSNorm({width})"
        case BatchNorm():
            return f"nn.BatchNorm1d({width})"
        case Embedding(vocab=vocab, dim=dim):
            return f"nn.Embedding({vocab}, {dim})"
        case Conv1d(out=out, bias=bias):
            return f"nn.Conv1d({width}, {out}, 3, padding=1{'' if bias else ', bias=False'})"
        case Conv2d(channels=channels, out=out, kernel=kernel, bias=bias):
            tail = "" if bias else ", bias=False"
            return f"Patches({channels}, {out}, {kernel}, stride={kernel}{tail})"
        case RawParameter(matrix=matrix):
            return f"{'Matrix' if matrix else 'Scale'}({width})"
        case MLP(hidden=hidden, bias=bias):
            return f"MLP({width}, {hidden}{'' if bias else ', bias=False'})"
        case Attention(heads=heads):
            return f"Attention({width}, {heads})"
        case Dropout(p=p):
            return f"nn.Dropout({p})"
        case Activation(fn=fn):
            return {"relu": "nn.ReLU()", "gelu": "nn.GELU()", "tanh": "nn.Tanh()"}[fn]
        case _:
            return f"{class_name}()"


def call_expression(
    module: Module, callee: str, args: list[str], seq: int, *, path: str = "", checkpointed: bool = False
) -> str:
    """The expression that calls a module; convolution and batch norm want the features second.

    ``checkpointed`` wraps the call in ``torch.utils.checkpoint``.
    """
    transposed = isinstance(module, Conv1d) or (isinstance(module, BatchNorm) and seq)
    packed = pack(module, path, args) if isinstance(module, Block) else ", ".join(args)
    if isinstance(module, Block) and module.method != "forward":
        callee = f"{callee}.{module.method}"
    if transposed:
        packed = f"{args[0]}.transpose(1, 2)"
    call = f"checkpointed({callee}, {packed}, use_reentrant=False)" if checkpointed else f"{callee}({packed})"
    return f"{call}.transpose(1, 2)" if transposed else call


def class_name(path: str) -> str:
    """The class of the block at ``path``: ``Model`` for the root, ``EncoderBlock0`` for ``encoder.block0``.

    Names in a Case are lower case, so the capitals keep different paths apart.
    """
    if not path:
        return MODEL_CLASS
    name = "".join(part.capitalize() for part in path.split("."))
    return f"{name}Block" if name in _TAKEN_CLASSES else name


def input_class(path: str) -> str:
    """The dataclass that the block at ``path`` takes where its ``passing`` is "dataclass"."""
    return f"{class_name(path)}Input"


def output_class(path: str) -> str:
    """The dataclass or named tuple that the block at ``path`` returns."""
    return f"{class_name(path)}Output"


def pack(block: Block, path: str, args: list[str]) -> str:
    """The argument list by which a caller hands ``args`` to the block at ``path``."""
    match block.passing:
        case "positional":
            return ", ".join(args)
        case "keyword":
            return ", ".join(f"{name}={arg}" for name, arg in zip(block.inputs, args, strict=True))
        case "tuple":
            return f"({', '.join(args)}{',' if len(args) == 1 else ''})"
        case "dict":
            fields = (f'"{name}": {arg}' for name, arg in zip(block.inputs, args, strict=True))
            return "{" + ", ".join(fields) + "}"
        case "dataclass":
            return f"{input_class(path)}({', '.join(args)})"


def result_expression(block: Block, value: str, index: int) -> str:
    """The ``index``-th output in ``value``, the result of a block."""
    match block.returns:
        case "tensor":
            return value
        case "dict":
            return f'{value}["out{index}"]'
        case "dataclass" | "namedtuple":
            return f"{value}.out{index}"
        case _:
            return f"{value}[{index}]"


class _BlockSource:
    """Writes one block as a class."""

    def __init__(self, case: Case, found: Facts, path: str, block: Block) -> None:
        self.case, self.found, self.path, self.block = case, found, path, block
        self.results: dict[str, Block] = {}

    def source(self) -> str:
        init = textwrap.indent("\n".join(self.init_lines()), " " * 8)
        body = textwrap.indent("\n".join(self.forward_lines()), " " * 8)
        signature = ", ".join(self.block.inputs) if self.block.passing in _ARGUMENTS else "inputs"
        forwarded = ""
        if self.block.method != "forward":
            args = ", ".join(f"{n}={n}" for n in self.block.inputs) if signature != "inputs" else "inputs"
            forwarded = (
                f"\n    def forward(self, {signature}):\n        return self.{self.block.method}({args})\n"
            )
        return (
            f"{self.structures()}"
            f"class {class_name(self.path)}(nn.Module):\n"
            f"    def __init__(self):\n        super().__init__()\n{init}\n\n"
            f"    def {self.block.method}(self, {signature}):\n{body}\n{forwarded}"
        ).replace("\n\n\n    def", "\n\n    def")

    def structures(self) -> str:
        """The classes of structured inputs and outputs."""
        outputs = [f"out{i}" for i in range(len(self.block.outputs))]
        parts = []
        if self.block.passing == "dataclass":
            parts.append(_dataclass(input_class(self.path), self.block.inputs))
        if self.block.returns == "dataclass":
            parts.append(_dataclass(output_class(self.path), outputs))
        if self.block.returns == "namedtuple":
            name = output_class(self.path)
            parts.append(f'{name} = collections.namedtuple("{name}", "{" ".join(outputs)}")\n\n\n')
        return "".join(parts)

    def init_lines(self) -> list[str]:
        lines = []
        if any(isinstance(node, Call) and node.alternatives for node in self.block.nodes):
            lines.append("self.path = 0")
        for child in self.block.children:
            if isinstance(child.module, Alias):
                continue
            path = join(self.path, child.name)
            width = self.found.width(path)
            lines.append(f"self.{child.name} = {constructor(child.module, width, class_name(path))}")
        if not self.path:
            for path, module in walk(self.case.model):
                if isinstance(module, Alias):
                    lines.append(f"self.{path} = self.{module.target}")
            lines += [f"self.{tie.parameter} = self.{tie.source}" for tie in self.case.ties]
        return lines

    def forward_lines(self) -> list[str]:
        lines = self.unpacking()
        for node in self.block.nodes:
            if isinstance(node, TensorOp):
                lines.append(f"{node.name} = {self.tensor_op(node)}")
                continue
            statements = self.call(node)
            if not node.grad:
                statements = ["with torch.no_grad():", *(f"    {line}" for line in statements)]
            lines += statements
        values = [self.read(v) for v in self.block.outputs]
        match self.block.returns:
            case "tensor":
                result = values[0]
            case "tuple":
                result = f"({', '.join(values)}{',' if len(values) == 1 else ''})"
            case "list":
                result = f"[{', '.join(values)}]"
            case "dict":
                result = "{" + ", ".join(f'"out{i}": {v}' for i, v in enumerate(values)) + "}"
            case "namedtuple" | "dataclass":
                result = f"{output_class(self.path)}({', '.join(values)})"
        return [*lines, f"return {result}"]

    def unpacking(self) -> list[str]:
        """Statements that take structured inputs apart."""
        names = self.block.inputs
        match self.block.passing:
            case "tuple":
                return [f"{', '.join(names)}{',' if len(names) == 1 else ''} = inputs"]
            case "dict":
                return [f'{name} = inputs["{name}"]' for name in names]
            case "dataclass":
                return [f"{name} = inputs.{name}" for name in names]
            case _:
                return []

    def call(self, node: Call) -> list[str]:
        calls = [f"{node.name} = {self.call_of(node, name)}" for name in node.modules]
        if len(calls) == 1:
            return calls
        lines = []
        for number, call in enumerate(calls):
            test = "if" if not number else "elif"
            lines += [f"{test} self.path == {number}:", f"    {call}"]
        return lines

    def call_of(self, node: Call, name: str) -> str:
        target = resolve(self.case.model, join(self.path, name))
        assert target is not None
        path, module = target
        if isinstance(module, Block):
            self.results[node.name] = module
        args = [self.read(a) for a in node.args]
        callee = f"self.{name}"
        utils = any(c.module == path and c.implementation == "utils" for c in self.case.checkpoints)
        return call_expression(module, callee, args, self.case.inputs.seq, path=path, checkpointed=utils)

    def read(self, value: str) -> str:
        name, _, index = value.partition(".")
        return result_expression(self.results[name], name, int(index)) if index else name

    def tensor_op(self, node: TensorOp) -> str:
        args = [self.read(a) for a in node.args]
        match node.op:
            case "add":
                return " + ".join(args)
            case "mul":
                return " * ".join(args)
            case "concat":
                return f"torch.cat([{', '.join(args)}], dim=-1)"
            case "detach":
                return f"{args[0]}.detach()"
            case "iadd":
                return f"add_in_place({', '.join(args)})"
            case "attend":
                return f"attend({', '.join(args)}, {node.head_dim})"
            case _:
                return f"torch.{node.op}({args[0]})"


_ARGUMENTS = ("positional", "keyword")
"""The ways of passing by which ``forward`` has one parameter for every input."""


def _dataclass(name: str, fields: Iterable[str]) -> str:
    listed = "".join(f"    {field}: torch.Tensor\n" for field in fields)
    return f"@dataclasses.dataclass\nclass {name}:\n{listed}\n\n"


def _tensor_op_helpers(found: Facts) -> Iterator[str]:
    for module in found.modules.values():
        for node in module.nodes if isinstance(module, Block) else ():
            if isinstance(node, TensorOp) and node.op in _OP_HELPERS:
                yield _OP_HELPERS[node.op]


_OP_HELPERS: Mapping[str, str] = {"attend": _ATTEND, "iadd": _ADD_IN_PLACE}


@functools.lru_cache(maxsize=256)
def model_source(case: Case) -> str:
    """Class definitions for the model, the root last as ``Model``.

    Expects ``torch`` and ``nn`` in scope, and what :func:`model_imports` names.
    """
    found = facts(case)
    helpers = dict.fromkeys(h for m in found.modules.values() if (h := _helper(m)))
    helpers |= dict.fromkeys(_tensor_op_helpers(found))
    blocks = [(p, m) for p, m in found.modules.items() if isinstance(m, Block)]
    classes = [_BlockSource(case, found, path, block).source() for path, block in reversed(blocks)]
    return "\n\n".join(text.strip() + "\n" for text in (*helpers, *classes))


def model_imports(case: Case) -> tuple[str, ...]:
    """The imports that the source of a model needs beside ``torch`` and ``nn``."""
    blocks = [m for m in facts(case).modules.values() if isinstance(m, Block)]
    lines = []
    if any(b.returns == "namedtuple" for b in blocks):
        lines.append("import collections")
    if any("dataclass" in (b.returns, b.passing) for b in blocks):
        lines.append("import dataclasses")
    if any(c.implementation == "utils" for c in case.checkpoints):
        lines.append("from torch.utils.checkpoint import checkpoint as checkpointed")
    return tuple(lines)
