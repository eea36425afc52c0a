"""The model of a Case: a tree of named modules; each block's forward is a DAG of calls and tensor ops.

Leaves store only what cannot be inferred. A ``Linear`` has an output width and no input width: the
input width follows from the DAG (:mod:`fuzzshard.case.widths`), so removing a node leaves a valid
graph behind more often than not. Shrinking depends on it.

A *value* inside a block is named by a string: an input name, a node name, or ``"node.i"`` for the
i-th result of a call to a block that returns several.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Literal

import msgspec


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every value a Case is made of: frozen, hashable, strict when decoded."""


class Linear(Part, tag="linear", frozen=True, kw_only=True):
    """``nn.Linear(inferred, out, bias=bias)``."""

    out: int
    bias: bool = True


class LayerNorm(Part, tag="layer_norm", frozen=True, kw_only=True):
    """``nn.LayerNorm(width, bias=bias)``."""

    bias: bool = True


class RMSNorm(Part, tag="rms_norm", frozen=True, kw_only=True):
    """``nn.RMSNorm(width)``."""


class BatchNorm(Part, tag="batch_norm", frozen=True, kw_only=True):
    """``nn.BatchNorm1d(width)``: buffers that every training forward changes."""


class Embedding(Part, tag="embedding", frozen=True, kw_only=True):
    """``nn.Embedding(vocab, dim)``; its argument is an integer input with values below ``vocab``."""

    vocab: int
    dim: int


class Conv1d(Part, tag="conv1d", frozen=True, kw_only=True):
    """``nn.Conv1d(width, out, 3, padding=1)`` over the sequence axis; needs ``Inputs.seq >= 1``."""

    out: int
    bias: bool = True


class Conv2d(Part, tag="conv2d", frozen=True, kw_only=True):
    """``nn.Conv2d(channels, out, kernel, stride=kernel)`` over a square image given as its features.

    Its argument has ``channels * side * side`` features, ``kernel`` divides ``side``; its result has one row
    of ``out`` features for each patch: ``conv(image).flatten(2).transpose(1, 2)``. Needs ``Inputs.seq == 0``.
    """

    channels: int
    kernel: int
    out: int
    bias: bool = True


class RawParameter(Part, tag="raw_parameter", frozen=True, kw_only=True):
    """A module that owns ``nn.Parameter`` s directly: ``x * weight`` or, with ``matrix``, ``x @ weight``."""

    matrix: bool = False


class MLP(Part, tag="mlp", frozen=True, kw_only=True):
    """``Linear(width, hidden) -> ReLU -> Linear(hidden, width)``."""

    hidden: int
    bias: bool = True


class Attention(Part, tag="attention", frozen=True, kw_only=True):
    """Causal self-attention of ``heads`` heads; needs ``Inputs.seq >= 1`` and a width that heads divide."""

    heads: int = 1


class Dropout(Part, tag="dropout", frozen=True, kw_only=True):
    """``nn.Dropout(p)``; the generator of masks is seeded for each forward by (case seed, op, rank)."""

    p: float = 0.5


class Activation(Part, tag="activation", frozen=True, kw_only=True):
    """A parameterless module: ``nn.ReLU()``, ``nn.GELU()`` or ``nn.Tanh()``."""

    fn: Literal["relu", "gelu", "tanh"] = "relu"


class Alias(Part, tag="alias", frozen=True, kw_only=True):
    """The module registered at ``target`` (a path from the root), registered here a second time."""

    target: str


class Call(Part, tag="call", frozen=True, kw_only=True):
    """Calls a child of the block; ``grad=False`` runs the call under ``torch.no_grad()``.

    With ``alternatives`` the block's *path* chooses at run time which child is called: 0 stands for
    ``module``, k for ``alternatives[k - 1]`` (:class:`fuzzshard.case.schedule.SetPath`).
    """

    name: str
    module: str
    args: tuple[str, ...]
    grad: bool = True
    alternatives: tuple[str, ...] = ()

    @property
    def modules(self) -> tuple[str, ...]:
        """The children that the call may call, by path number."""
        return (self.module, *self.alternatives)


class TensorOp(Part, tag="op", frozen=True, kw_only=True):
    """A tensor operation between values of the block; all have one width but ``concat`` (the sum).

    ``iadd`` adds its second argument to its first in place, under ``torch.no_grad()``. ``attend`` is
    causal attention of (query, key, value) in heads of ``head_dim`` features; needs ``Inputs.seq >= 1``.
    """

    name: str
    op: Literal["add", "mul", "concat", "detach", "relu", "tanh", "iadd", "attend"]
    args: tuple[str, ...]
    head_dim: int = 1


Node = Call | TensorOp


class Child(Part, frozen=True, kw_only=True):
    """One registered submodule of a block."""

    name: str
    module: Module


Returns = Literal["tensor", "tuple", "dict", "list", "namedtuple", "dataclass"]
Passing = Literal["positional", "keyword", "tuple", "dict", "dataclass"]


class Block(Part, tag="block", frozen=True, kw_only=True):
    """A module with children and a forward DAG, given in a topological order.

    ``inputs`` are the parameter names of its ``forward``; ``passing`` says how callers hand them over:
    as arguments, or as the fields of one structured argument. ``outputs`` are the values it returns: one
    for ``returns="tensor"``, any number for the others (fields and keys ``out0``, ``out1``, ...).
    With a ``method`` the DAG is the body of the method of that name, which is what callers call;
    ``forward`` only calls it. Children without a call are unused modules; nodes without a reader are
    unused values.
    """

    children: tuple[Child, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ("x",)
    returns: Returns = "tensor"
    passing: Passing = "positional"
    method: str = "forward"

    def child(self, name: str) -> Module | None:
        """The submodule registered under ``name``, or None."""
        return next((c.module for c in self.children if c.name == name), None)


Leaf = (
    Linear
    | LayerNorm
    | RMSNorm
    | BatchNorm
    | Embedding
    | Conv1d
    | Conv2d
    | RawParameter
    | MLP
    | Attention
    | Dropout
    | Activation
)
Module = Leaf | Block | Alias


def join(prefix: str, name: str) -> str:
    """``join("a.b", "c") == "a.b.c"`` and ``join("", "c") == "c"``, as ``named_modules`` does."""
    return f"{prefix}.{name}" if prefix else name


def walk(module: Module, path: str = "") -> Iterator[tuple[str, Module]]:
    """All modules with their paths, parents first, in registration order; aliases are not followed."""
    yield path, module
    if isinstance(module, Block):
        for child in module.children:
            yield from walk(child.module, join(path, child.name))


def resolve(root: Block, path: str) -> tuple[str, Module] | None:
    """The canonical path and module that ``path`` names, following aliases; None if there is none."""
    found: Module = root
    canonical = ""
    for name in path.split(".") if path else ():
        if not isinstance(found, Block) or (child := found.child(name)) is None:
            return None
        canonical = join(canonical, name)
        found = child
        if isinstance(found, Alias):
            if found.target == canonical or (target := resolve(root, found.target)) is None:
                return None
            canonical, found = target
    return canonical, found


def has_alias(root: Block) -> bool:
    """Whether some module is registered twice."""
    return any(isinstance(module, Alias) for _, module in walk(root))


@functools.lru_cache(maxsize=1024)
def modules_below(root: Block, path: str) -> frozenset[str]:
    """The canonical paths of what ``get_submodule(path).modules()`` yields, which follows aliases."""
    found: dict[str, Module] = {}
    todo = [path]
    while todo:
        if (here := resolve(root, todo.pop())) is None or here[0] in found:
            continue
        canonical, module = here
        found[canonical] = module
        if isinstance(module, Block):
            todo += [join(canonical, child.name) for child in module.children]
    return frozenset(found)


def value_node(value: str) -> str:
    """The name of the node or input that a value comes from: ``"h1.0"`` gives ``"h1"``."""
    return value.split(".", 1)[0]
