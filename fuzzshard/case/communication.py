"""Which options of ``WrapGroup.communication`` fit a group, and what they mean for it.

Sources are the docstrings of the methods of ``FSDPModule``
(torch/distributed/fsdp/_fully_shard/_fully_shard.py).
"""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts
from fuzzshard.case.graph import modules_below
from fuzzshard.case.options import CommunicationOption
from fuzzshard.case.paths import is_within

CUSTOM: tuple[CommunicationOption, ...] = ("custom_gather", "custom_scatter")


def misfit(case: Case, found: Facts, index: int, option: CommunicationOption) -> str | None:
    """Return why ``option`` cannot be meant for the group at ``index``, or None."""
    chosen = case.wrap[index].communication
    if option in CUSTOM and "allocate" in chosen:
        return '"this cannot be used together" with allocate'
    if option == "hook_stream" and "hook" in chosen:
        return "a group has one all-reduce hook"
    if option == "hook_stream" and case.mesh.replicate is not None:
        return 'a stream "should only be set if not using native HSDP"'
    if option == "no_backward_unshard" and _backward_needs_parameters(case, found, index):
        return "it is for parameters that backward does not need, as those of embeddings"
    return None


def _backward_needs_parameters(case: Case, found: Facts, index: int) -> bool:
    """Return whether backward may compute with a parameter of the group, or recompute what does.

    "This can be used in expert cases when the user knows that all parameters in this FSDP module's
    parameter group are not needed for backward computation (e.g. embedding)"
    (``set_unshard_in_backward``). A group without parameters has nothing to say it of.
    """
    own = [fqn for fqn, owner in found.owners.items() if owner == index]
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
        or any(is_within(path, plan.module) for path in modules for plan in case.tensor_parallel)
    )


def looks_at_unsharded(case: Case) -> bool:
    """Return whether a group goes by what its unsharded parameters require, in a backward that
    makes none.

    What ``requires_grad_`` says of sharded ones between a forward and its backward is not
    documented there.
    """
    told = {option for group in case.wrap for option in group.communication}
    return not told.isdisjoint(("zeros_for_unused", "no_backward_unshard"))


def is_kept(case: Case, index: int) -> bool:
    """Return whether the group at ``index`` keeps its unsharded memory after resharding."""
    return "keep_storage" in case.wrap[index].communication


def some_fill_unused(case: Case) -> bool:
    """Whether some group gets zeros where a parameter has no gradient; only groups that were
    unsharded do.
    """
    return any(fills_unused(case, index) for index in range(len(case.wrap)))


def fills_unused(case: Case, index: int | None) -> bool:
    """Return whether parameters of the group at ``index`` get zeros where they have no
    gradient.
    """
    return index is not None and "zeros_for_unused" in case.wrap[index].communication
