"""Watches one run of an engine for accesses without order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch

from fuzzshard.instruments import STREAMS, reading
from fuzzshard.instruments.streams.clocks import Race, races
from fuzzshard.instruments.streams.cuda import CudaDevice
from fuzzshard.instruments.streams.recorder import Recorder
from fuzzshard.instruments.streams.simulated import SimulatedDevice


class Watched:
    """A run that is being watched. ``races`` are known when it is over."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.races: list[Race] = []
        self.named: Callable[[], Mapping[int, str]] = dict
        """Returns the names of storages, by their address in C++."""


@contextlib.contextmanager
def watching(device: torch.device) -> Iterator[Watched]:
    """Watch what is done on the streams of a device; on the CPU, ``fully_shard`` gets some."""
    with contextlib.ExitStack() as stack:
        with reading(STREAMS):
            chosen = CudaDevice(device) if device.type == "cuda" else SimulatedDevice()
            recorder = stack.enter_context(chosen.recording())
        watched = Watched(recorder)
        yield watched
        with reading(STREAMS):
            names, watched.named = watched.named(), dict
            stack.close()
            watched.races = races(recorder.trace(names))
