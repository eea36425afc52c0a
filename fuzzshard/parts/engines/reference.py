"""The plain module, with its gradients averaged by an explicit all-reduce."""

from __future__ import annotations

from fuzzshard.parts.engine import EngineSpec


class Reference(EngineSpec):
    """Judges the others, and is accused where they agree with each other against it."""

    name = "reference"
    title = "reference"
    tag = "reference"
