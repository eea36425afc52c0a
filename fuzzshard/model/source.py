"""Case -> the Python source of its model. The source that ran is the source the reproducer prints.

Needs no torch: the coordinator prints scripts, ranks execute the same text.
"""

from __future__ import annotations

import functools
import textwrap

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

_TAKEN_CLASSES = (MODEL_CLASS, "Attention", "Scale", "Matrix")
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


def call_expression(module: Module, callee: str, args: list[str], seq: int) -> str:
    """The expression that calls a module; convolution and batch norm want the features second."""
    if isinstance(module, Conv1d) or (isinstance(module, BatchNorm) and seq):
        return f"{callee}({args[0]}.transpose(1, 2)).transpose(1, 2)"
    return f"{callee}({', '.join(args)})"


def class_name(path: str) -> str:
    """The class of the block at ``path``: ``Model`` for the root, ``EncoderBlock0`` for ``encoder.block0``.

    Names in a Case are lower case, so the capitals keep different paths apart.
    """
    if not path:
        return MODEL_CLASS
    name = "".join(part.capitalize() for part in path.split("."))
    return f"{name}Block" if name in _TAKEN_CLASSES else name


class _BlockSource:
    """Writes one block as a class."""

    def __init__(self, case: Case, found: Facts, path: str, block: Block) -> None:
        self.case, self.found, self.path, self.block = case, found, path, block
        self.results: dict[str, str] = {}

    def source(self) -> str:
        init = textwrap.indent("\n".join(self.init_lines()), " " * 8)
        body = textwrap.indent("\n".join(self.forward_lines()), " " * 8)
        return (
            f"class {class_name(self.path)}(nn.Module):\n"
            f"    def __init__(self):\n        super().__init__()\n{init}\n\n"
            f"    def forward(self, {', '.join(self.block.inputs)}):\n{body}\n"
        ).replace("\n\n\n    def", "\n\n    def")

    def init_lines(self) -> list[str]:
        lines = []
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
        lines: list[str] = []
        for node in self.block.nodes:
            if isinstance(node, TensorOp):
                lines.append(f"{node.name} = {self.tensor_op(node)}")
                continue
            statement = f"{node.name} = {self.call(node)}"
            lines += [statement] if node.grad else ["with torch.no_grad():", f"    {statement}"]
        values = [self.read(v) for v in self.block.outputs]
        match self.block.returns:
            case "tensor":
                result = values[0]
            case "tuple":
                result = f"({', '.join(values)}{',' if len(values) == 1 else ''})"
            case "dict":
                result = "{" + ", ".join(f'"out{i}": {v}' for i, v in enumerate(values)) + "}"
        return [*lines, f"return {result}"]

    def call(self, node: Call) -> str:
        target = resolve(self.case.model, join(self.path, node.module))
        assert target is not None
        if isinstance(target[1], Block):
            self.results[node.name] = target[1].returns
        args = [self.read(a) for a in node.args]
        return call_expression(target[1], f"self.{node.module}", args, self.case.inputs.seq)

    def read(self, value: str) -> str:
        name, _, index = value.partition(".")
        if not index:
            return name
        return f'{name}["out{index}"]' if self.results[name] == "dict" else f"{name}[{index}]"

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
            case _:
                return f"torch.{node.op}({args[0]})"


@functools.lru_cache(maxsize=256)
def model_source(case: Case) -> str:
    """Class definitions for the model, the root last as ``Model``; expects ``torch`` and ``nn`` in scope."""
    found = facts(case)
    helpers = dict.fromkeys(h for m in found.modules.values() if (h := _helper(m)))
    blocks = [(p, m) for p, m in found.modules.items() if isinstance(m, Block)]
    classes = [_BlockSource(case, found, path, block).source() for path, block in reversed(blocks)]
    return "\n\n".join(text.strip() + "\n" for text in (*helpers, *classes))
