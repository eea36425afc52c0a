"""Following a forward with something else than tensors: layouts, dtypes."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar

from fuzzshard.analysis.groups import modules_called
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Alias, Block, Call, Module, TensorOp, join, resolve
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaf import Leaf

V = TypeVar("V")


class ForwardWalk(abc.ABC, Generic[V]):
    """Calls modules as a forward does, with a ``V`` in the place of every tensor.

    Without ``paths`` all alternatives are called (``groups.modules_called``). A
    module that was called with equal arguments before is not followed again. ``what`` a ``V`` is,
    in one word, and how to ``mend`` alternatives that differ in it, are for the error that says
    so.
    """

    what: ClassVar[str]
    mend: ClassVar[str]

    def __init__(
        self, case: Case, found: Inferred, paths: Mapping[str, int] | None = None
    ) -> None:
        self.case, self.found, self.paths = case, found, paths
        self._seen: dict[tuple[str, tuple[V, ...]], tuple[V, ...]] = {}

    @abc.abstractmethod
    def leaf(self, path: str, leaf: Leaf, arg: V) -> V:
        """Return what a leaf returns."""

    @abc.abstractmethod
    def tensor_op(self, path: str, node: TensorOp, args: tuple[V, ...]) -> V:
        """Return what a tensor op in the block at ``path`` returns."""

    def call(self, path: str, args: tuple[V, ...]) -> tuple[V, ...]:
        """Return what the module at ``path`` returns; raises :class:`InvalidCase` where it cannot
        be called so.
        """
        if (path, args) not in self._seen:
            self._seen[path, args] = self.module(path, self.found.modules[path], args)
        return self._seen[path, args]

    def module(self, path: str, module: Module, args: tuple[V, ...]) -> tuple[V, ...]:
        """Return what happens in a call."""
        assert not isinstance(module, Alias)
        if isinstance(module, Block):
            return self._block(path, module, args)
        (arg,) = args
        return (self.leaf(path, module, arg),)

    def _block(self, path: str, block: Block, args: tuple[V, ...]) -> tuple[V, ...]:
        values: dict[str, V] = dict(zip(block.inputs, args, strict=True))
        for node in block.nodes:
            given = tuple(values[a] for a in node.args)
            if isinstance(node, TensorOp):
                values[node.name] = self.tensor_op(path, node, given)
            else:
                values |= self._node(path, node, given)
        return tuple(values[v] for v in block.outputs)

    def _node(self, path: str, node: Call, args: tuple[V, ...]) -> dict[str, V]:
        """Return the values that a call makes; it may have alternatives, which must agree."""
        made = []
        for name in modules_called(node, path, self.paths):
            target = resolve(self.case.model, join(path, name))
            assert target is not None
            target_path, module = target
            results = self.call(target_path, args)
            several = isinstance(module, Block) and module.returns != "tensor"
            names = [f"{node.name}.{i}" for i in range(len(results))] if several else [node.name]
            made.append(dict(zip(names, results, strict=True)))
        if any(result != made[0] for result in made):
            raise InvalidCase(
                f"the alternatives of {node.name!r} in block {path!r} differ in {self.what}",
                self.mend,
            )
        return made[0]
