"""How a module is built and called, as Python expressions, and the classes it needs beside ``torch.nn``."""

from __future__ import annotations

from collections.abc import Mapping

from fuzzshard.case.case import Case
from fuzzshard.case.graph import (
    MLP,
    Activation,
    Attention,
    BatchNorm,
    Block,
    Conv1d,
    Conv2d,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    Module,
    RawParameter,
    RMSNorm,
)

MODEL_CLASS = "Model"

MATRIX_CLASS = "Matrix"

_TAKEN_CLASSES = (MODEL_CLASS, "Attention", "Patches", "Scale", MATRIX_CLASS)
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


def helper_class(module: Module) -> str | None:
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
            return f"{MATRIX_CLASS if matrix else 'Scale'}({width})"
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


def is_checkpointed_at_call(case: Case, path: str) -> bool:
    """Whether whoever calls the module at ``path`` calls it by ``torch.utils.checkpoint``."""
    return any(c.module == path and c.implementation == "utils" for c in case.checkpoints)


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


OP_HELPERS: Mapping[str, str] = {"attend": _ATTEND, "iadd": _ADD_IN_PLACE}
"""The functions that tensor operations need."""
