"""Cases that many tests look at, drawn once in a test run, whichever process needs them first."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from fuzzshard.analysis.features import features
from fuzzshard.analysis.steering import Steering
from fuzzshard.case.case import Case
from fuzzshard.corpus.files import write_atomic
from fuzzshard.errors import UsageError
from fuzzshard.strategies import draw_cases
from fuzzshard.strategies.steered import Steered, reach


class Drawn(NamedTuple):
    """A case that was drawn, and its features."""

    case: Case
    features: frozenset[str]


def reach_first(*wanted: str, seed: int, cuda: bool = False) -> Steered | None:
    """Return where a stream of cases for eight ranks that have all these features begins, or None
    where a campaign that asks for them would find none.
    """
    steering = Steering(require=wanted)
    with contextlib.suppress(UsageError):
        return reach(steering, seed, world_size=Streams.WORLD_SIZE, cuda=cuda, starts=1)
    return None


class Streams:
    """The first 100 cases of each of 24 streams for eight ranks, which every combination of mesh
    axes fits. Every fourth stream has cases that may need CUDA.

    ``folder`` is for all processes of a test run.
    """

    SEED, COUNT, WORLD_SIZE = 20261, 24, 8
    LENGTH = 100

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[int, tuple[Drawn, ...]] = {}

    def __getitem__(self, number: int) -> tuple[Drawn, ...]:
        """Return the cases of a stream."""
        if number not in self._read:
            file = self._folder / f"stream-{number}.pickle"
            if not file.exists():
                write_atomic(file, pickle.dumps(self._draw(number)))
            self._read[number] = pickle.loads(file.read_bytes())
        return self._read[number]

    def each(self, *, cuda: bool | None = None) -> Iterator[Drawn]:
        """Yield the cases of all streams, or of those with or without CUDA."""
        for number in self._numbers(cuda):
            yield from self[number]

    def whole(self, *, cuda: bool) -> dict[Case, frozenset[str]]:
        """Return all distinct cases of the streams with or without CUDA, and their features.

        Processes that need them at the same time begin with different streams.
        """
        numbers = self._numbers(cuda)
        for number in Random(os.getpid()).sample(numbers, len(numbers)):
            self[number]
        return dict(self.each(cuda=cuda))

    def _numbers(self, cuda: bool | None) -> list[int]:
        """The numbers of the streams with or without CUDA, or of all."""
        return [n for n in range(self.COUNT) if cuda in (None, self._on_cuda(n))]

    def _draw(self, number: int) -> tuple[Drawn, ...]:
        cuda, seed = self._on_cuda(number), self.SEED + number
        cases = draw_cases(seed, self.LENGTH, world_size=self.WORLD_SIZE, cuda=cuda)
        return tuple(Drawn(case, features(case)) for case in cases)

    @staticmethod
    def _on_cuda(number: int) -> bool:
        return number % 4 == 1
