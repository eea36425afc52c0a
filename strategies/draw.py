"""Draws cases in batches, for a campaign that wants a stream of values and not a test function."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator

from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzzshard.case.case import ALL_ENGINES, Case, EngineName
from fuzzshard.strategies.cases import cases

_BATCH = 50


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
    @given(cases(world_size=world_size, engines=engines, cuda=cuda))
    def collect(case: Case) -> None:
        drawn.append(case)

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
