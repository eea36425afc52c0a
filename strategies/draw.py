"""Draws cases in batches, for a campaign that wants a stream of values and not a test function."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzzshard.case.case import ALL_ENGINES, Case, EngineName
from fuzzshard.strategies.cases import SIZES, draw_case
from fuzzshard.strategies.swarm import swarm
from fuzzshard.strategies.tape import cut

_BATCH = 50
NUM_BYTES = sum(SIZES)
"""How many bytes a case is read off."""


def read_case(
    data: bytes, *, world_size: int, engines: tuple[EngineName, ...], cuda: bool
) -> Case:
    """Return the case that ``data`` stands for."""
    tapes = cut(data, SIZES)
    return draw_case(tapes, swarm(tapes[0]), world_size, engines, cuda=cuda)


def draw_batch(
    batch_seed: int,
    count: int,
    *,
    world_size: int,
    engines: tuple[EngineName, ...] = ALL_ENGINES,
    cuda: bool = False,
) -> list[Case]:
    """``count`` cases by one run of Hypothesis; equal arguments give equal lists. The first is
    minimal.
    """
    drawn: list[Case] = []

    @seed(batch_seed)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.binary(min_size=NUM_BYTES, max_size=NUM_BYTES))
    def collect(data: bytes) -> None:
        drawn.append(read_case(data, world_size=world_size, engines=engines, cuda=cuda))

    collect()
    return drawn


def case_stream(
    stream_seed: int,
    *,
    world_size: int,
    engines: tuple[EngineName, ...] = ALL_ENGINES,
    cuda: bool = False,
) -> Iterator[Case]:
    """Distinct cases without end. Every batch has a seed of its own, derived from the stream's."""
    seen: set[int] = set()  # hashes: the cases of weeks would fill the memory
    for index in itertools.count():
        batch_seed = zlib.crc32(f"{stream_seed}/{index}".encode())
        for case in draw_batch(
            batch_seed, _BATCH, world_size=world_size, engines=engines, cuda=cuda
        ):
            if hash(case) not in seen:
                seen.add(hash(case))
                yield case


def draw_cases(
    stream_seed: int,
    count: int,
    *,
    world_size: int,
    engines: tuple[EngineName, ...] = ALL_ENGINES,
    cuda: bool = False,
) -> list[Case]:
    """The first ``count`` cases of a stream."""
    stream = case_stream(stream_seed, world_size=world_size, engines=engines, cuda=cuda)
    return list(itertools.islice(stream, count))
