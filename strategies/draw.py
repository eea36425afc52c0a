"""Draws cases, for a campaign that wants a stream of values and not a test function."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

from fuzzshard.case.case import ALL_ENGINES, Case, EngineName
from fuzzshard.strategies.cases import SIZES, draw_case
from fuzzshard.strategies.swarm import swarm
from fuzzshard.strategies.tape import cut

NUM_BYTES = sum(SIZES)
"""How many bytes a case is read off."""


def read_case(
    data: bytes, *, world_size: int, engines: tuple[EngineName, ...], cuda: bool
) -> Case:
    """Return the case that ``data`` stands for."""
    tapes = cut(data, SIZES)
    return draw_case(tapes, swarm(tapes[0]), world_size, engines, cuda=cuda)


def case_stream(
    stream_seed: int,
    *,
    world_size: int,
    engines: tuple[EngineName, ...] = ALL_ENGINES,
    cuda: bool = False,
) -> Iterator[Case]:
    """Yield distinct cases without end, of which the first is minimal; equal arguments give equal
    streams.
    """
    rng = Random(stream_seed)
    seen: set[int] = set()  # hashes: the cases of weeks would fill the memory
    data = bytes(NUM_BYTES)
    while True:
        case = read_case(data, world_size=world_size, engines=engines, cuda=cuda)
        if case.engines and hash(case) not in seen:
            seen.add(hash(case))
            yield case
        data = rng.randbytes(NUM_BYTES)


def draw_cases(
    stream_seed: int,
    count: int,
    *,
    world_size: int,
    engines: tuple[EngineName, ...] = ALL_ENGINES,
    cuda: bool = False,
) -> list[Case]:
    """Return the first ``count`` cases of a stream."""
    stream = case_stream(stream_seed, world_size=world_size, engines=engines, cuda=cuda)
    return list(itertools.islice(stream, count))
