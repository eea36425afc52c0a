"""The worlds of a command that runs saved cases."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from fuzzshard import world
from fuzzshard.campaign.control import (
    Control,
    ControlledWorld,
    cpu_ranks,
    ended_in_time,
    signals_call,
)
from fuzzshard.campaign.judge import Stopped
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.side_by_side import in_worlds
from fuzzshard.options import RankOptions
from fuzzshard.report.busy import busy
from fuzzshard.runner import Runner, StartWorld
from fuzzshard.world.placement import Worlds, placed

T = TypeVar("T")


class CommandWorlds:
    """Worlds that run side by side until somebody halts them, for example with Ctrl-C."""

    def __init__(
        self, ranks: RankOptions, worlds: Worlds, *, max_time: float | None = None
    ) -> None:
        self.control = Control(max_time)
        self.config = ranks.config(ranks.most)
        self.one_size = ranks.world_size is not None
        self._ranks, self._worlds = ranks, worlds
        self._started: list[world.World] = []

    @contextlib.contextmanager
    def start(self, size: int) -> Iterator[list[ControlledWorld]]:
        """Yield worlds of ``size`` ranks; each starts with its first case. Raises what
        :func:`fuzzshard.world.placement.placed` does.
        """
        sized = dataclasses.replace(self.config, size=size)
        _, num_devices = self._ranks.here
        shared = math.ceil(size / num_devices) if sized.device == "cuda" else 1
        configs = placed(sized, self._worlds, num_devices, shared)
        with contextlib.ExitStack() as stack:
            worlds = [stack.enter_context(self._made(config)) for config in configs]
            yield [ControlledWorld(each, self.control) for each in worlds]

    def on_cpu(self) -> StartWorld | None:
        """Do as :func:`fuzzshard.campaign.control.cpu_ranks`."""
        return cpu_ranks(self.config, self._made, self.control)

    def _made(self, config: world.WorldConfig) -> world.World:
        self._started.append(world.World(config))
        return self._started[-1]

    @contextlib.contextmanager
    def ending_with_signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM end every world after its run, or kill slow ranks."""
        with (
            signals_call(self.control.halt_or_raise),
            ended_in_time(
                self.control, lambda: [pid for each in self._started for pid in each.pids]
            ),
        ):
            yield

    def tell_each(
        self,
        doing: str,
        entries: Sequence[tuple[Path, CorpusEntry]],
        run: Callable[[Runner, Path, CorpusEntry], T],
        tell: Callable[[T], object],
    ) -> int:
        """Calls ``tell`` with what ``run`` returns for each entry, as soon as it does, and shows
        what is done; returns how many entries were left at a Ctrl-C.
        """

        def run_one(world: Runner, path: Path, entry: CorpusEntry) -> T:
            line.now(f"{doing} {path.name}")
            return run(world, path, entry)

        results = in_worlds(
            entries,
            self.start,
            run_one,
            device=self.config.device,
            num_ranks=self.config.size,
            one_size=self.one_size,
            halt=self.control.halt,
        )
        with (
            busy(doing, len(entries)) as line,
            contextlib.closing(results),
            contextlib.suppress(Stopped, KeyboardInterrupt),
            self.ending_with_signals(),
        ):
            for result in line.each(results):
                tell(result)
        return len(entries) - line.done
