"""Worlds that many tests share: starting the fork server costs seconds, a warm case a tenth of one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzzshard.world import World, WorldConfig


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[World]:
    """Four ranks of stock torch on CPU: every mesh up to 4."""
    with World(WorldConfig(size=4)) as world:
        yield world


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[World]:
    """Two ranks of stock torch on CPU."""
    with World(WorldConfig(size=2)) as world:
        yield world
