"""Worlds that many tests share: starting the fork server costs seconds, a warm case a tenth of
one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from fuzzshard.world import World, WorldConfig


def pytest_configure() -> None:
    """What tests start hears Ctrl-C and a hang-up, also where nohup or a shell's ``&`` hid
    them.
    """
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


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
