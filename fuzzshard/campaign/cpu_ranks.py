"""CPU worlds beside those of CUDA: a finding that they show needs no GPU to be looked at."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from fuzzshard.campaign.control import Control, ControlledWorld
from fuzzshard.runner import Runner, StartWorlds
from fuzzshard.world.config import WorldConfig


def cpu_ranks(
    config: WorldConfig,
    make_world: Callable[[WorldConfig], AbstractContextManager[Runner]],
    control: Control,
    *,
    worlds: int = 1,
) -> StartWorlds | None:
    """Starts worlds like that of ``config``, but on the CPU; None where it is there already."""
    if config.device == "cpu":
        return None

    @contextlib.contextmanager
    def start(size: int) -> Iterator[Sequence[Runner]]:
        on_cpu = dataclasses.replace(config, device="cpu", size=size, devices=())
        with contextlib.ExitStack() as stack:
            started = [stack.enter_context(make_world(on_cpu)) for _ in range(worlds)]
            yield [ControlledWorld(world, control) for world in started]

    return start


def run_by(runner: Callable[[Runner], Runner], start: StartWorlds) -> StartWorlds:
    """Starts the worlds of ``start``, each run by its ``runner``."""

    @contextlib.contextmanager
    def started(size: int) -> Iterator[Sequence[Runner]]:
        with start(size) as worlds:
            yield [runner(world) for world in worlds]

    return started
