"""Where gradients flow: whether a forward's outputs depend on anything that requires a gradient.

A backward from an output that depends on nothing trainable is an error of autograd, in every
engine.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Set

from fuzzshard.analysis.groups import modules_called
from fuzzshard.analysis.inferred import infer
from fuzzshard.case.case import Case, Inputs, Tie
from fuzzshard.case.graph import Block, Call, Module, TensorOp, join, resolve


class Flow:
    """Follows ``requires_grad`` through a model."""

    def __init__(self, root: Block, inputs: Inputs, ties: tuple[Tie, ...]) -> None:
        found = infer(root, inputs, ties)
        self.root = root
        self.root_args = tuple(tensor.requires_grad for tensor in inputs.tensors)
        self._none = (False,) * max(map(len, found.input_values.values()))
        self.modules = found.modules
        self.paths: Mapping[str, int] | None = None
        tied = {tie.parameter: tie.source for tie in ties}
        self.parameters: dict[str, frozenset[str]] = {}
        """The distinct parameters of every leaf, by path."""
        for path, leaf in found.leaves.items():
            names = [join(path, n) for n in leaf.parameters(found.width(path))]
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
        args = self.root_args if inputs and not target else self._none
        on_paths = None if paths is None else tuple(paths.items())
        asked = (target, args, frozenset(trainable), on_paths)
        if asked not in self._known:
            self.paths = paths
            self._known[asked] = self._module(target, self.modules[target], args, trainable)
        return self._known[asked]

    def _module(
        self, path: str, module: Module, args: tuple[bool, ...], trainable: Set[str]
    ) -> tuple[bool, ...]:
        if not isinstance(module, Block):
            return (args[0] or not self.parameters[path].isdisjoint(trainable),)
        values = dict(zip(module.inputs, args, strict=False))
        for node in module.nodes:
            node_args = tuple(values[a] for a in node.args)
            if isinstance(node, TensorOp):
                in_place = node.op == "iadd"  # without gradients
                values[node.name] = (
                    node_args[0] if in_place else node.op != "detach" and any(node_args)
                )
                continue
            results = self._call(path, node, node_args, trainable)
            values[node.name] = results[0]
            values |= {f"{node.name}.{i}": result for i, result in enumerate(results)}
        return tuple(values[v] for v in module.outputs)

    def _call(
        self, path: str, call: Call, args: tuple[bool, ...], trainable: Set[str]
    ) -> tuple[bool, ...]:
        results = []
        for name in modules_called(call, path, self.paths):
            target = resolve(self.root, join(path, name))
            assert target is not None
            results.append(self._module(*target, args, trainable))
        return tuple(call.grad and all(flows) for flows in zip(*results, strict=True))


def flow_of(case: Case) -> Flow:
    """Return the flow of a case, which all with its model share."""
    return _flow(case.model, case.inputs, case.ties)


@functools.lru_cache(maxsize=256)
def _flow(root: Block, inputs: Inputs, ties: tuple[Tie, ...]) -> Flow:
    return Flow(root, inputs, ties)
