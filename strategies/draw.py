"""Draws cases, for a campaign that wants a stream of values and not a test function."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random
from typing import Literal

from msgspec.structs import replace

from fuzzshard.case.case import ALL_ENGINES, Case, EngineName
from fuzzshard.case.facts import facts
from fuzzshard.case.options import DDP, FSDP1
from fuzzshard.parts.engines import specs
from fuzzshard.strategies.cases import SIZES, draw_case, planned, with_options
from fuzzshard.strategies.engine_options import ddp
from fuzzshard.strategies.inputs import with_rank_batches
from fuzzshard.strategies.schedules import schedule
from fuzzshard.strategies.subject import Subject
from fuzzshard.strategies.swarm import IMAGES, PRECISION, closed, swarm
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
    """Distinct cases without end, of which the first is minimal; equal arguments give equal
    streams.
    """
    rng = Random(stream_seed)
    seen: set[int] = set()  # hashes: the cases of weeks would fill the memory
    data = bytes(NUM_BYTES)
    while True:
        case = read_case(data, world_size=world_size, engines=engines, cuda=cuda)
        if hash(case) not in seen:
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
    """The first ``count`` cases of a stream."""
    stream = case_stream(stream_seed, world_size=world_size, engines=engines, cuda=cuda)
    return list(itertools.islice(stream, count))


Start = Literal["plan", "options", "schedule"]
"""What is drawn anew, and all that comes after it."""


def redrawn(case: Case, data: bytes, start: Start, *, cuda: bool = False) -> Case:
    """``case`` with ``start`` and what comes after it drawn from ``data``, which has as many bytes
    as whole cases are read off.
    """
    for_swarm, for_settings, _, for_plans, for_options, for_schedule = cut(data, SIZES)
    allowed = closed(swarm(for_swarm) | frozenset(_present(case, start)))
    inputs = replace(case.inputs, rank_batches=())
    case = replace(case, inputs=inputs, expect=(), schedule=(), ddp=DDP())
    if start == "plan":
        case = replace(case, wrap=(), ties=(), checkpoints=(), freezes=())
        case = planned(for_plans, allowed, _without_options(case))
    if start == "options":
        case = _without_options(case)
    if start != "schedule":
        case = with_options(for_options, allowed, case, cuda=cuda)
    subject = Subject.of(case)
    case = replace(case, schedule=schedule(for_schedule, allowed, subject))
    case = with_rank_batches(for_settings, allowed, case, subject.found)
    return ddp(for_settings, allowed, case)


def _present(case: Case, start: Start) -> Iterator[str]:
    """The choices that the part of the case that stays has made, and that exclude others."""
    for spec in specs(case.engines):
        if spec.choice is not None and spec.choice.excludes:
            yield spec.choice.name
    if any(leaf.takes_images for leaf in facts(case).leaves.values()):
        yield IMAGES
    if case.mesh.tensor is not None:
        yield "tensor"
    if case.checkpoints:
        yield "checkpoint"
    if start == "schedule":
        policies = (case.fsdp1.policy, *(group.policy for group in case.wrap))
        if any(policy is not None for policy in policies):
            yield PRECISION
        if case.dtypes:
            yield "other_dtypes"
        if case.init == "meta":
            yield "meta"


def _without_options(case: Case) -> Case:
    """``case`` as it is before its options are drawn."""
    groups = (group.as_planned() for group in case.wrap)
    mesh = case.mesh if case.tensor_parallel else replace(case.mesh, tensor=None)
    return replace(
        case,
        mesh=mesh,
        wrap=tuple(groups),
        ignored=(),
        dtypes=(),
        tensor_parallel=(),
        fsdp1=FSDP1(),
        optimizer=case.optimizer.without_extensions(),
    )
