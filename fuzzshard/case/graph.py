"""The model of a Case: a tree of named modules; each block's forward is a DAG of calls and tensor
ops.

Leaves (:mod:`fuzzshard.parts.leaves`) store only what cannot be inferred: the input width of a
Linear follows from the DAG (:mod:`fuzzshard.analysis.widths`), so removing a node leaves a valid
graph behind more often than not. Shrinking depends on it.

A *value* inside a block is named by a string: an input name, a node name, or ``"node.i"`` for the
i-th result of a call to a block that returns several.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, Union

from fuzzshard.parts.leaf import Leaf
from fuzzshard.parts.leaves import LEAVES
from fuzzshard.parts.part import Part


class Alias(Part, tag="alias", frozen=True, kw_only=True):
    """The module registered at ``target`` (a path from the root), registered here a second
    time.
    """

    target: str


class Call(Part, tag="call", frozen=True, kw_only=True):
    """Calls a child of the block; ``grad=False`` runs the call under ``torch.no_grad()``.

    With ``alternatives`` the block's *path* chooses at run time which child is called: 0 stands
    for ``module``, k for ``alternatives[k - 1]`` (:class:`fuzzshard.parts.ops.set_path.SetPath`).
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

    ``iadd`` adds its second argument to its first in place, under ``torch.no_grad()``. ``attend``
    is causal attention of (query, key, value) in heads of ``head_dim`` features; needs
    ``Inputs.seq >= 1``.
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

    ``inputs`` are the parameter names of its ``forward``; ``passing`` says how callers hand them
    over: as arguments, or as the fields of one structured argument. ``outputs`` are the values it
    returns: one for ``returns="tensor"``, any number for the others (fields and keys ``out0``,
    ``out1``, ...). With a ``method`` the DAG is the body of the method of that name, which is what
    callers call; ``forward`` only calls it. Children without a call are unused modules; nodes
    without a reader are unused values.
    """

    children: tuple[Child, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ("x",)
    returns: Returns = "tensor"
    passing: Passing = "positional"
    method: str = "forward"

    @property
    def has_method(self) -> bool:
        """Whether callers call a method of its own in place of ``forward``."""
        return self.method != "forward"

    def child(self, name: str) -> Module | None:
        """Return the submodule registered under ``name``, or None."""
        return next((c.module for c in self.children if c.name == name), None)


if TYPE_CHECKING:
    Module = Leaf | Block | Alias
else:  # what msgspec decodes goes by the classes
    Module = Union[*LEAVES, Block, Alias]


def join(prefix: str, name: str) -> str:
    """Return ``"a.b.c"`` for ``"a.b"`` and ``"c"``, and ``"c"`` for ``""`` and ``"c"``."""
    return f"{prefix}.{name}" if prefix else name


def walk(module: Module, path: str = "") -> Iterator[tuple[str, Module]]:
    """Yield all modules with their paths, parents first, in registration order; aliases are not
    followed.
    """
    yield path, module
    if isinstance(module, Block):
        for child in module.children:
            yield from walk(child.module, join(path, child.name))


@functools.lru_cache(maxsize=4096)
def resolve(root: Block, path: str) -> tuple[str, Module] | None:
    """Return the canonical path and module that ``path`` names, following aliases; None if there
    is none.
    """
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
    """Return whether some module is registered twice."""
    return any(isinstance(module, Alias) for _, module in walk(root))


@functools.lru_cache(maxsize=1024)
def modules_below(root: Block, path: str) -> frozenset[str]:
    """Return the canonical paths of what ``get_submodule(path).modules()`` yields, which follows
    aliases.
    """
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
    """Return the name of the node or input that a value comes from: ``"h1.0"`` gives ``"h1"``."""
    return value.split(".", 1)[0]


def count_paths(modules: Mapping[str, Module]) -> dict[str, int]:
    """Return blocks that have calls with alternatives, and how many paths there are."""
    counts: dict[str, int] = {}
    for path, module in modules.items():
        for node in module.nodes if isinstance(module, Block) else ():
            if isinstance(node, Call) and node.alternatives:
                counts[path] = min(counts.get(path, len(node.modules)), len(node.modules))
    return counts
