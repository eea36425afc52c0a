"""Following a forward with something else than tensors: layouts, dtypes, gradients."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from fuzzshard.case.graph import Alias, Block, Call, Module, TensorOp, join, resolve
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaf import Leaf

if TYPE_CHECKING:  # which widths make
    from fuzzshard.analysis.inferred import Inferred
    from fuzzshard.case.case import Case

V = TypeVar("V")


def modules_called(node: Call, block: str, paths: Mapping[str, int] | None) -> tuple[str, ...]:
    """Return the children that a call of the block at ``block`` calls; all it may call where
    ``paths`` is None.
    """
    if paths is None:
        return node.modules
    return (node.modules[paths.get(block, 0) if node.alternatives else 0],)


class ForwardWalk(abc.ABC, Generic[V]):
    """Calls modules below ``root`` as a forward does, with a ``V`` in the place of every tensor.

    Without ``paths`` all alternatives are called (:func:`modules_called`).
    """

    def __init__(self, root: Block, paths: Mapping[str, int] | None = None) -> None:
        self.root, self.paths = root, paths

    @abc.abstractmethod
    def leaf(self, path: str, leaf: Leaf, arg: V) -> V:
        """Return what a leaf returns."""

    @abc.abstractmethod
    def tensor_op(self, path: str, node: TensorOp, args: tuple[V, ...]) -> V:
        """Return what a tensor op in the block at ``path`` returns."""

    @abc.abstractmethod
    def joined(self, path: str, node: Call, made: Sequence[tuple[V, ...]]) -> tuple[V, ...]:
        """Return what a call in the block at ``path`` gives of what each alternative returns."""

    def call(self, path: str, module: Module, args: tuple[V, ...]) -> tuple[V, ...]:
        """Return what a module returns."""
        assert not isinstance(module, Alias)
        if isinstance(module, Block):
            return self.block(path, module, args)
        return (self.leaf(path, module, args[0]),)

    def block(self, path: str, block: Block, args: tuple[V, ...]) -> tuple[V, ...]:
        """Return what a block returns."""
        values: dict[str, V] = dict(zip(block.inputs, args, strict=True))
        for node in block.nodes:
            given = tuple(values[a] for a in node.args)
            if isinstance(node, TensorOp):
                values[node.name] = self.tensor_op(path, node, given)
                continue
            results = self.node(path, node, given)
            values[node.name] = results[0]
            values |= {f"{node.name}.{i}": result for i, result in enumerate(results)}
        return tuple(values[v] for v in block.outputs)

    def node(self, path: str, node: Call, args: tuple[V, ...]) -> tuple[V, ...]:
        """Return what a call returns."""
        names = modules_called(node, path, self.paths)
        targets = (resolve(self.root, join(path, name)) for name in names)
        made = [self.call(*target, args) for target in targets if target]
        return self.joined(path, node, made)


class AgreeingWalk(ForwardWalk[V]):
    """Such a walk of a case whose alternatives must agree. A module that was called with equal
    arguments before is not followed again.

    ``what`` a ``V`` is, in one word, and how to ``mend`` alternatives that differ in it, are for
    the error that says so, an :class:`InvalidCase`.
    """

    what: ClassVar[str]
    mend: ClassVar[str]

    def __init__(
        self, case: Case, found: Inferred, paths: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(case.model, paths)
        self.case, self.found = case, found
        self.seen: dict[tuple[str, tuple[V, ...]], tuple[V, ...]] = {}

    def call(self, path: str, module: Module, args: tuple[V, ...]) -> tuple[V, ...]:
        """Return what a module returns, at its first call with these arguments."""
        if (path, args) not in self.seen:
            self.seen[path, args] = self.module(path, module, args)
        return self.seen[path, args]

    def module(self, path: str, module: Module, args: tuple[V, ...]) -> tuple[V, ...]:
        """Return what happens in a call."""
        return super().call(path, module, args)

    def joined(self, path: str, node: Call, made: Sequence[tuple[V, ...]]) -> tuple[V, ...]:
        """Return what all alternatives give."""
        if any(result != made[0] for result in made):
            raise InvalidCase(
                f"the alternatives of {node.name!r} in block {path!r} differ in {self.what}",
                self.mend,
            )
        return made[0]
