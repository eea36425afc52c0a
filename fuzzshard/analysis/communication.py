"""What options of groups mean for those of a case.

Sources are the docstrings of the methods of ``FSDPModule``
(torch/distributed/fsdp/_fully_shard/_fully_shard.py).
"""

from __future__ import annotations

import dataclasses
import functools

from fuzzshard.analysis.groups import wrapped_modules
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.analysis.tensor_parallel import tensor_dims
from fuzzshard.analysis.units import parameter_groups
from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.graph import modules_below
from fuzzshard.case.paths import is_within
from fuzzshard.parts.ops.tell import words_told
from fuzzshard.parts.options.communication import WORDS, Trait, Word
from fuzzshard.parts.part import Shape


@dataclasses.dataclass(frozen=True)
class Told:
    """A group of a case, as its options see it."""

    case: Case
    found: Inferred
    index: int

    @property
    def group(self) -> WrapGroup:
        """The group itself."""
        return self.case.wrap[self.index]

    @functools.cached_property
    def wrapped(self) -> frozenset[str]:
        """The modules of all groups."""
        return wrapped_modules(self.case)

    @functools.cached_property
    def parameters(self) -> dict[str, Shape]:
        """The parameters that it comes upon, with their shapes."""
        groups = parameter_groups(self.case)
        return {f: self.found.parameters[f] for f, some in groups.items() if self.index in some}

    @property
    def parallel(self) -> list[str]:
        """Its own parameters that are tensor parallel."""
        dims = tensor_dims(self.case, self.found)
        return [f for f, owner in self.found.owners.items() if f in dims and owner == self.index]

    def is_planned(self, path: str) -> bool:
        """Return whether a module or a parameter is in a tensor-parallel plan."""
        plans = (plan for plan in self.case.tensor_parallel if plan.is_of_leaf)
        return any(is_within(path, plan.module) for plan in plans)

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
            or any(p not in found.leaves or "ids" not in found.leaves[p].takes for p in modules)
            or any(map(self.is_planned, modules))
        )


def words_of(case: Case) -> dict[str, Word]:
    """Return what groups are told at any time, in the order of the list of words."""
    told = words_told(case.schedule).union(*(group.communication for group in case.wrap))
    return {name: word for name, word in WORDS.items() if name in told}


def some(case: Case, trait: Trait) -> bool:
    """Return whether some group does so at some time, as it is told."""
    return any(trait in word.gives for word in words_of(case).values())


def told_late(case: Case, trait: Trait) -> bool:
    """Return whether some group does so once it is told during training."""
    return any(trait in WORDS[word].gives for word in words_told(case.schedule))


def fills_unused(case: Case, index: int | None) -> bool:
    """Return whether parameters of the group at ``index`` get zeros at some time where they have
    no gradient; only groups that were unsharded do.
    """
    return index is not None and (told_late(case, "fills") or case.wrap[index].does("fills"))
