"""Which FSDP roots a backward passes: it ends the iteration of their groups, whether it brings
them a gradient or not.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from fuzzshard.case.autograd import Tape, Value, reached
from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts, facts
from fuzzshard.case.groups import root_groups
from fuzzshard.case.schedule_state import follow


@functools.lru_cache(maxsize=64)
def passed_roots(case: Case, rank: int) -> Mapping[int, frozenset[int]]:
    """The roots, as :func:`root_groups` numbers them, by the index of the backward's op.

    A backward passes a root where it comes to an output of one of its modules.
    """
    hooks = _Hooks(case, facts(case))
    passed = {}
    for at in follow(case, rank):
        losses = hooks.tape.follow(at)
        if at.op.takes:
            passed[at.index] = frozenset(
                root for node in reached(losses) for root in hooks.on.get(node.number, ())
            )
    return passed


class _Hooks:
    """Notes the outputs of wrapped modules, by the numbers of their nodes.

    The inputs of a module that manages parameters pass through one function of ``fully_shard``
    (``RegisterPostBackwardFunction``): a backward that comes to one of them goes on through all.
    """

    def __init__(self, case: Case, found: Facts) -> None:
        managing = frozenset(found.owners.values())
        pairs = [*zip(root_groups(case), case.wrap, strict=True)]
        self.roots = {m: root for root, group in pairs for m in group.modules}
        self.joining = frozenset(
            m for i, group in enumerate(case.wrap) if i in managing for m in group.modules
        )
        self.on: dict[int, set[int]] = {}
        self.tape = Tape(case, found, self)

    def enter(self, path: str, args: list[Value], *, grad: bool) -> list[Value]:
        """Joins the inputs that require a gradient."""
        if path not in self.joining or not grad or all(a is None for a in args):
            return args
        joint = self.tape.node(args, saves=False)
        return [None if a is None else joint for a in args]

    def leave(self, path: str, results: list[Value], *, grad: bool) -> list[Value]:
        """Notes the outputs."""
        if path in self.roots and grad:
            for node in results:
                if node is not None:
                    self.on.setdefault(node.number, set()).add(self.roots[path])
        return results
