"""Mixtures of experts in a case: where they are, and which wrap groups have them."""

from __future__ import annotations

from collections.abc import Mapping

from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.graph import join


def weights(case: Case) -> Mapping[str, str]:
    """Return the parameters with a matrix for each expert, by the paths of the mixtures; those
    that are tied have one name.
    """
    mixtures, tied = inferred(case).inner("experts"), case.tied
    named = {path: join(inner, "weight") for path, inner in mixtures.items()}
    return {path: tied.get(fqn, fqn) for path, fqn in named.items()}


def of_experts(case: Case, group: WrapGroup) -> bool:
    """Return whether all modules of a group are mixtures."""
    return inferred(case).inner("experts").keys() >= {*group.modules}


def beside_others(case: Case, group: WrapGroup) -> list[str]:
    """Return the parameters of experts that a group manages whose modules are not all mixtures."""
    if of_experts(case, group):
        return []
    owners, index = inferred(case).owners, case.wrap.index(group)
    return [fqn for fqn in weights(case).values() if owners.get(fqn) == index]


def has_experts(case: Case, group: WrapGroup) -> bool:
    """Return whether a group manages experts, alone or beside others."""
    return of_experts(case, group) or bool(beside_others(case, group))


def shares_evenly(case: Case) -> bool:
    """Return whether the ranks of the shard axis can have as many experts each."""
    shapes = inferred(case).parameters
    return all(shapes[fqn][0] % case.mesh.shard == 0 for fqn in weights(case).values())
