"""How a module is built and called, as Python expressions, and the classes it needs beside
``torch.nn``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block, Module
from fuzzshard.parts.leaf import Leaf
from fuzzshard.parts.leaves import LEAVES

MODEL_CLASS = "Model"

_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_TAKEN_CLASSES = {
    MODEL_CLASS,
    *(name for leaf in LEAVES for helper in leaf.helpers for name in _CLASS.findall(helper)),
}
"""Class names that a block may not have."""

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


def constructor(module: Module, width: int, class_name: str) -> str:
    """Return the expression that builds a module called with values of ``width`` features."""
    return module.constructor(width) if isinstance(module, Leaf) else f"{class_name}()"


def call_expression(
    module: Module,
    callee: str,
    args: list[str],
    seq: int,
    *,
    path: str = "",
    checkpointed: bool = False,
) -> str:
    """Return the expression that calls a module; convolution and batch norm take features second.

    ``checkpointed`` wraps the call in ``torch.utils.checkpoint``.
    """
    transposed = isinstance(module, Leaf) and seq > 0 and "channels" in module.takes
    packed = pack(module, path, args) if isinstance(module, Block) else ", ".join(args)
    if isinstance(module, Block) and module.has_method:
        callee = f"{callee}.{module.method}"
    if transposed:
        packed = f"{args[0]}.transpose(1, 2)"
    call = (
        f"checkpointed({callee}, {packed}, use_reentrant=False)"
        if checkpointed
        else f"{callee}({packed})"
    )
    return f"{call}.transpose(1, 2)" if transposed else call


def is_checkpointed_at_call(case: Case, path: str) -> bool:
    """Return whether callers of the module at ``path`` call it by ``torch.utils.checkpoint``."""
    return any(c.module == path and c.implementation == "utils" for c in case.checkpoints)


def class_name(path: str) -> str:
    """Return the class of the block at ``path``: ``Model`` for the root, ``EncoderBlock0`` for
    ``encoder.block0``.

    Names in a Case are lower case, so the capitals keep different paths apart.
    """
    if not path:
        return MODEL_CLASS
    name = "".join(part.capitalize() for part in path.split("."))
    return f"{name}Block" if name in _TAKEN_CLASSES else name


def input_class(path: str) -> str:
    """Return the dataclass that the block at ``path`` takes if its ``passing`` is "dataclass"."""
    return f"{class_name(path)}Input"


def output_class(path: str) -> str:
    """Return the dataclass or named tuple that the block at ``path`` returns."""
    return f"{class_name(path)}Output"


def pack(block: Block, path: str, args: list[str]) -> str:
    """Return the argument list by which a caller hands ``args`` to the block at ``path``."""
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
    """Return the ``index``-th output in ``value``, the result of a block."""
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
