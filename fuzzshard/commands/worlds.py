"""The worlds of a command that runs saved cases."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator

from fuzzshard import world
from fuzzshard.campaign.control import Control, ControlledWorld, ended_in_time
from fuzzshard.campaign.signals import signals_call
from fuzzshard.world.placement import Worlds, placed


class CommandWorlds:
    """Worlds that run side by side until they are halted, by Ctrl-C for one."""

    def __init__(self, config: world.WorldConfig, worlds: Worlds, num_devices: int) -> None:
        self.control = Control(None)
        self._config, self._worlds, self._num_devices = config, worlds, num_devices
        self._started: list[world.World] = []

    @contextlib.contextmanager
    def start(self, size: int) -> Iterator[list[ControlledWorld]]:
        """Worlds of ``size`` ranks; each starts with its first case. Raises what
        :func:`fuzzshard.world.placement.placed` does.
        """
        sized = dataclasses.replace(self._config, size=size)
        shared = math.ceil(size / self._num_devices) if sized.device == "cuda" else 1
        self._started = [
            world.World(each) for each in placed(sized, self._worlds, self._num_devices, shared)
        ]
        with contextlib.ExitStack() as stack:
            yield [
                ControlledWorld(stack.enter_context(each), self.control) for each in self._started
            ]

    @contextlib.contextmanager
    def ending_with_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM in the block end every world after its run, soon at the latest."""
        with (
            signals_call(self.control.halt_or_raise),
            ended_in_time(
                self.control, lambda: [pid for each in self._started for pid in each.pids]
            ),
        ):
            yield
