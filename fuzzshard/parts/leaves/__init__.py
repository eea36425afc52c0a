"""The leaf modules: every file of this folder is one, and all are found here."""

from __future__ import annotations

import importlib
import pkgutil

from fuzzshard.parts.leaf import Kind, Leaf

for _file in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_file.name)

LEAVES: tuple[type[Leaf], ...] = tuple(
    sorted(Leaf.__subclasses__(), key=lambda leaf: leaf.complexity)
)
"""Simplest first."""

KINDS: dict[Kind, type[Leaf]] = dict(
    sorted(
        ((kind, leaf) for leaf in LEAVES for kind in leaf.kinds), key=lambda pair: pair[0].place
    )
)
"""Every kind and its leaf, in the order of swarms' choices."""
