"""What the words of ``WrapGroup.communication`` mean for groups of a case.

Sources are the docstrings of the methods of ``FSDPModule``
(torch/distributed/fsdp/_fully_shard/_fully_shard.py).
"""

from __future__ import annotations

import dataclasses

from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.facts import Facts
from fuzzshard.case.graph import modules_below
from fuzzshard.case.paths import is_within
from fuzzshard.parts.options.communication import WORDS


@dataclasses.dataclass(frozen=True)
class Told:
    """A group of a case, as its words see it."""

    case: Case
    found: Facts
    index: int

    @property
    def group(self) -> WrapGroup:
        """The group itself."""
        return self.case.wrap[self.index]

    @property
    def backward_needs_parameters(self) -> bool:
        """Whether backward may compute with a parameter of it, or recompute what does.

        "This can be used in expert cases when the user knows that all parameters in this FSDP
        module's parameter group are not needed for backward computation (e.g. embedding)"
        (``set_unshard_in_backward``). A group without parameters has nothing to say it of.
        """
        case, found = self.case, self.found
        own = [fqn for fqn, owner in found.owners.items() if owner == self.index]
        tied = {name for tie in case.ties for name in (tie.parameter, tie.source)}
        modules = {fqn.rpartition(".")[0] for fqn in own}
        recomputed = {
            path
            for checkpoint in case.checkpoints
            for path in modules_below(case.model, checkpoint.module)
        }
        return (
            not own
            or not tied.isdisjoint(own)
            or not recomputed.isdisjoint(modules)
            or any(not (path in found.leaves and found.leaves[path].takes_ids) for path in modules)
            or any(
                is_within(path, plan.module) for path in modules for plan in case.tensor_parallel
            )
        )


def misfit(case: Case, found: Facts, index: int, option: str) -> str | None:
    """Return why ``option`` cannot be meant for the group at ``index``, or None."""
    return WORDS[option].misfit(Told(case, found, index))


def looks_at_unsharded(case: Case) -> bool:
    """Return whether a group goes by what its unsharded parameters require, in a backward that
    makes none.
    """
    return any(group.does("looks_at_unsharded") for group in case.wrap)


def some_fill_unused(case: Case) -> bool:
    """Whether some group gets zeros where a parameter has no gradient; only groups that were
    unsharded do.
    """
    return any(group.does("fills") for group in case.wrap)


def fills_unused(case: Case, index: int | None) -> bool:
    """Return whether parameters of the group at ``index`` get zeros where they have no
    gradient.
    """
    return index is not None and case.wrap[index].does("fills")
