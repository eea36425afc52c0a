"""CPU worlds beside those of CUDA: a finding that they show needs no GPU to be looked at."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from fuzzshard.campaign.control import Control, ControlledWorld
from fuzzshard.campaign.explain import MendableWorld
from fuzzshard.campaign.judge import Runner
from fuzzshard.world.config import WorldConfig

StartCpu = Callable[[int], AbstractContextManager[Sequence[MendableWorld]]]
"""Starts worlds of so many CPU ranks."""

StartRunners = Callable[[int], AbstractContextManager[Sequence[Runner]]]
"""The same, for what runs cases on them."""


def cpu_ranks(
    config: WorldConfig,
    make_world: Callable[[WorldConfig], AbstractContextManager[MendableWorld]],
    control: Control,
    *,
    worlds: int = 1,
) -> StartCpu | None:
    """Starts worlds like that of ``config``, but on the CPU; None where it is there already."""
    if config.device == "cpu":
        return None

    @contextlib.contextmanager
    def start(size: int) -> Iterator[Sequence[MendableWorld]]:
        on_cpu = dataclasses.replace(config, device="cpu", size=size, devices=(), coverage=0)
        with contextlib.ExitStack() as stack:
            started = [stack.enter_context(make_world(on_cpu)) for _ in range(worlds)]
            yield [ControlledWorld(world, control) for world in started]

    return start


def run_by(runner: Callable[[MendableWorld], Runner], start: StartCpu) -> StartRunners:
    """Starts the worlds of ``start``, each run by its ``runner``."""

    @contextlib.contextmanager
    def started(size: int) -> Iterator[Sequence[Runner]]:
        with start(size) as worlds:
            yield [runner(world) for world in worlds]

    return started
