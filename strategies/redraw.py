"""Drawing one part of a finished case again: what the strategies would have drawn after the rest
of it.

A case is drawn in the order model, wrap plan, options, schedule, and each part fits what came
before. So any end of this sequence can be drawn anew for the beginning of another case.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.options import DDP, FSDP1
from fuzzshard.parts.engines import specs
from fuzzshard.strategies.cases import SIZES, planned, with_options
from fuzzshard.strategies.engine_options import ddp
from fuzzshard.strategies.inputs import with_rank_batches
from fuzzshard.strategies.options import related
from fuzzshard.strategies.schedules import schedule
from fuzzshard.strategies.subject import Subject
from fuzzshard.strategies.swarm import IMAGES, PRECISION, closed, swarm
from fuzzshard.strategies.tape import cut

Start = Literal["plan", "options", "schedule"]
"""What is drawn anew, and all that comes after it."""


def redrawn(case: Case, data: bytes, start: Start, *, cuda: bool = False) -> Case:
    """``case`` with ``start`` and what comes after it drawn from ``data``, which has as many bytes
    as whole cases are read off.
    """
    for_swarm, for_settings, _, for_plans, for_options, for_schedule = cut(data, SIZES)
    allowed = closed(swarm(for_swarm) | frozenset(_present(case, start)))
    inputs = replace(case.inputs, rank_batches=())
    case = replace(case, inputs=inputs, relation=None, expect=(), schedule=(), ddp=DDP())
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
    return ddp(for_settings, allowed, related(for_settings, allowed, case))


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
