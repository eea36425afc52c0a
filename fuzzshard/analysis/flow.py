"""Where gradients flow: whether a forward's outputs depend on anything that requires a gradient.

A backward from an output that depends on nothing trainable is an error of autograd, in every
engine.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence, Set

from typing_extensions import override

from fuzzshard.analysis.forward_walk import ForwardWalk
from fuzzshard.analysis.inferred import infer
from fuzzshard.case.case import Case, Inputs, Tie
from fuzzshard.case.graph import Block, Call, TensorOp, join
from fuzzshard.parts.leaf import Leaf


class Flow(ForwardWalk[bool]):
    """Follows ``requires_grad`` through a model."""

    def __init__(self, root: Block, inputs: Inputs, ties: tuple[Tie, ...]) -> None:
        super().__init__(root)
        self.found = infer(root, inputs, ties)
        self.root_args = tuple(tensor.requires_grad for tensor in inputs.tensors)
        self.trainable: Set[str] = frozenset()
        tied = {tie.parameter: tie.source for tie in ties}
        self.parameters: dict[str, frozenset[str]] = {}
        """The distinct parameters of every leaf, by path."""
        for path, leaf in self.found.leaves.items():
            names = [join(path, n) for n in leaf.parameters(self.found.width(path))]
            self.parameters[path] = frozenset(tied.get(name, name) for name in names)
        self._known: dict[Hashable, tuple[bool, ...]] = {}

    def outputs(
        self,
        target: str,
        trainable: Set[str],
        paths: Mapping[str, int] | None = None,
        *,
        inputs: bool = True,
    ) -> tuple[bool, ...]:
        """Return which outputs of a forward of ``target`` require a gradient while ``trainable``
        does, and, where ``inputs`` count, those inputs of the root that say so.

        ``paths`` is the path of every block with alternatives; without it, those that do on all
        paths.
        """
        of_none = (False,) * len(self.found.input_values[target])
        args = self.root_args if inputs and not target else of_none
        on_paths = None if paths is None else tuple(paths.items())
        asked = (target, args, frozenset(trainable), on_paths)
        if asked not in self._known:
            self.paths, self.trainable = paths, trainable
            self._known[asked] = self.call(target, self.found.modules[target], args)
        return self._known[asked]

    @override
    def leaf(self, path: str, leaf: Leaf, arg: bool) -> bool:
        return arg or not self.parameters[path].isdisjoint(self.trainable)

    @override
    def tensor_op(self, path: str, node: TensorOp, args: tuple[bool, ...]) -> bool:
        if node.op == "iadd":  # without gradients
            return args[0]
        return node.op != "detach" and any(args)

    @override
    def joined(self, path: str, node: Call, made: Sequence[tuple[bool, ...]]) -> tuple[bool, ...]:
        return tuple(node.grad and all(flows) for flows in zip(*made, strict=True))


def flow_of(case: Case) -> Flow:
    """Return the flow of a case, which all with its model share."""
    return _flow(case.model, case.inputs, case.ties)


@functools.lru_cache(maxsize=256)
def _flow(root: Block, inputs: Inputs, ties: tuple[Tie, ...]) -> Flow:
    return Flow(root, inputs, ties)
