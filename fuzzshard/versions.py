"""Which software nodes have that work together: it must be the same."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping

from fuzzshard import __version__
from fuzzshard.corpus.lifecycle import release


def versions() -> dict[str, str]:
    """Return what must be equal on all nodes that work together."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": release(importlib.metadata.version("torch")),
        "fuzzshard": __version__,
    }


def differences(ours: Mapping[str, str], theirs: Mapping[str, str], us: str) -> str:
    """Return in words which versions of another node are not ``ours``; "" where all are."""
    return ", ".join(
        f"it has {name} {theirs.get(name)}, and {us} {version}"
        for name, version in ours.items()
        if theirs.get(name) != version
    )
