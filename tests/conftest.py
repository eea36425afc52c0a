"""Worlds that many tests share: starting the fork server costs seconds, a warm case a tenth of
one.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from streams import Streams

from fuzzshard.reproducer.forked import ForkedRanks
from fuzzshard.world import World, WorldConfig

LONG_FOLDERS = (
    *("faults", "docs", "check", "drafts", "plugin", "strategies", "corpus", "campaign"),
    *("world", "engines", "planted", "reproducer"),
)
"""Folders with files that take long, the longest first. No process is left alone with one of them
at the end.
"""


def pytest_configure(config: pytest.Config) -> None:
    """What tests start hears Ctrl-C and a hang-up, also where nohup or a shell's ``&`` hid
    them, and finds modules compiled: hundreds of processes import fuzzshard. Files start in the
    order of :func:`pytest_collection_modifyitems`, and not those with the most tests first.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    config.option.loadscopereorder = False  # pytest-xdist's --no-loadscope-reorder
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the folders that take longest."""
    folders = {name: place for place, name in enumerate(LONG_FOLDERS)}
    items.sort(key=lambda item: folders.get(item.path.parent.name, len(folders)))


def pytest_collection_finish() -> None:
    """Garbage collection passes over what was imported and collected, which all stays."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """What stayed goes with the interpreter."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    """Cases that are drawn once for all workers of pytest-xdist."""
    folder = tmp_path_factory.getbasetemp()
    return Streams(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)


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


@pytest.fixture(scope="session")
def run_script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedRanks]:
    """Runs scripts without a torchrun of their own."""
    ranks = ForkedRanks(tmp_path_factory.mktemp("scripts"))
    yield ranks
    ranks.close()
