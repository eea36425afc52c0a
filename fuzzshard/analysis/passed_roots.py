"""Which FSDP roots a backward passes: it ends the iteration of their groups, whether it brings
them a gradient or not. And which groups it is done with before its end.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from typing_extensions import override

from fuzzshard.analysis.autograd import AutogradGraph, Node, Value, Watcher, reached
from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.analysis.schedule_state import follow, roots_by_op
from fuzzshard.case.case import Case


@functools.lru_cache(maxsize=64)
def passed_roots(case: Case, rank: int) -> Mapping[int, frozenset[int]]:
    """Return the roots, as :func:`roots_by_op` numbers them, by the index of the backward's op.

    A backward passes a root where it comes to an output of one of its modules. Where backwards are
    finalized by hand, each "completes pending gradient reduction" of the whole model, also one
    "that did not reach any FSDP-managed parameters" (``FSDPModule.finalize_backward``).
    """
    roots = roots_by_op(case)
    whole = [i for i, g in enumerate(case.wrap) if case.finalize and "" in g.modules]
    return {
        index: frozenset(
            roots[index][group] for group in (*whole, *(g for node in nodes for g in node.hooks))
        )
        for index, nodes in _backwards(case, rank, certain=False).items()
    }


def done_within(case: Case, rank: int) -> Mapping[int, frozenset[int]]:
    """Return the groups whose inputs get gradients in a backward, by the index of its op.

    Those of several modules are left out, and so are those that only get gradients because these
    join their inputs: which of several modules is entered first is not said.
    """
    several = any(len(group.modules) > 1 for group in case.wrap)
    return {
        index: frozenset(
            node.inputs_of
            for node in nodes
            if node.inputs_of is not None and len(case.wrap[node.inputs_of].modules) == 1
        )
        for index, nodes in _backwards(case, rank, certain=several).items()
    }


@functools.lru_cache(maxsize=4)
def _backwards(case: Case, rank: int, *, certain: bool) -> Mapping[int, list[Node]]:
    """What each backward runs, by the index of its op; perhaps only what is ``certain`` to."""
    autograd = _Hooks(case, inferred(case), certain=certain).autograd
    found = {}
    for at in follow(case, rank):
        losses = autograd.follow(at)
        if at.op.takes:
            found[at.index] = reached(losses)
    return found


class _Hooks(Watcher):
    """Puts the hooks of wrap groups on the outputs of their modules.

    The inputs of a module that manages parameters pass through one function of ``fully_shard``
    (``RegisterPostBackwardFunction``): a backward that comes to one of them goes on through all.
    """

    def __init__(self, case: Case, found: Inferred, *, certain: bool) -> None:
        self.groups = {m: i for i, group in enumerate(case.wrap) for m in group.modules}
        self.managing = frozenset(found.owners.values())
        if certain:
            self.managing -= {i for i, group in enumerate(case.wrap) if len(group.modules) > 1}
        self.autograd = AutogradGraph(case, found, self)

    @override
    def enter(self, path: str, args: tuple[Value, ...], *, grad: bool) -> tuple[Value, ...]:
        """Joins the inputs that require a gradient."""
        manages = path in self.groups and self.groups[path] in self.managing
        if not manages or not grad or all(a is None for a in args):
            return args
        joint = self.autograd.made(args)
        joint.inputs_of = self.groups[path]
        return tuple(None if a is None else joint for a in args)

    @override
    def leave(self, path: str, results: tuple[Value, ...], *, grad: bool) -> tuple[Value, ...]:
        """Puts the hooks on."""
        for node in results if path in self.groups and grad else ():
            if node is not None:
                node.hooks.append(self.groups[path])
        return results
