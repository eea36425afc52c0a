"""The worlds of a command that runs saved cases."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from fuzzshard import world
from fuzzshard.campaign.control import Control, ControlledWorld, ended_in_time, signals_call
from fuzzshard.campaign.judge import Stopped
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.side_by_side import in_worlds
from fuzzshard.runner import Runner
from fuzzshard.world.placement import Worlds, placed

T = TypeVar("T")


class CommandWorlds:
    """Worlds that run side by side until somebody halts them, for example with Ctrl-C."""

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
            world.World(config)
            for config in placed(sized, self._worlds, self._num_devices, shared)
        ]
        with contextlib.ExitStack() as stack:
            yield [
                ControlledWorld(stack.enter_context(each), self.control) for each in self._started
            ]

    @contextlib.contextmanager
    def ending_with_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end every world after its run, and kill ranks that take too long."""
        with (
            signals_call(self.control.halt_or_raise),
            ended_in_time(
                self.control, lambda: [pid for each in self._started for pid in each.pids]
            ),
        ):
            yield

    def results(
        self,
        entries: Iterable[tuple[Path, CorpusEntry]],
        run: Callable[[Runner, Path, CorpusEntry], T],
        *,
        one_size: bool = False,
    ) -> Generator[T, None, None]:
        """Yields what :func:`fuzzshard.corpus.side_by_side.in_worlds` does, until Ctrl-C."""
        with contextlib.suppress(Stopped, KeyboardInterrupt), self.ending_with_signals():
            yield from in_worlds(
                entries,
                self.start,
                run,
                device="cuda" if self._config.device == "cuda" else "cpu",
                num_ranks=self._config.size,
                one_size=one_size,
                halt=self.control.halt,
            )
