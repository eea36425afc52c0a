"""The leaf modules: every file of this folder is one, and all are found here."""

from __future__ import annotations

from fuzzshard.parts.leaf import Kind, Leaf, Role
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.part import below, import_files

import_files(__name__, __path__)

LEAVES: tuple[type[Leaf], ...] = tuple(
    sorted(
        {leaf for leaf in below(Leaf) if "kinds" in vars(leaf)}, key=lambda leaf: leaf.complexity
    )
)
"""Simplest first."""

KINDS: dict[Kind, type[Leaf]] = dict(
    sorted(
        ((kind, leaf) for leaf in LEAVES for kind in leaf.kinds if kind.draw),
        key=lambda pair: pair[0].place,
    )
)
"""Every kind that is drawn and its leaf, in the order of swarms' choices."""

SIMPLEST: Leaf = LEAVES[0]()
"""A module to put in the place of any other that keeps the width."""
SIMPLEST_TRAINED: Leaf = next(leaf for leaf in LEAVES if leaf.has_parameters and not leaf.sizes)()
"""The same, with parameters."""


def kinds_for(role: Role) -> tuple[Kind, ...]:
    """Return the kinds that something asks for in a role, in the order of swarms' choices."""
    return tuple(kind for kind in KINDS if kind.role == role)


def affine(out: int, *, bias: bool = True) -> Leaf:
    """Return the leaf that maps values of any width to ``out`` features by one matrix."""
    return Linear(out=out, bias=bias)
