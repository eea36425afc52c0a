"""What this machine can run, shown by running it: a clean case, and one with a planted fault.

A fuzzer that reports nothing looks the same whether torch is right or the fuzzer is blind; the
planted fault tells the two apart.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import fuzzshard
from fuzzshard.case.case import Case, Inputs, Mesh, TensorSpec, WrapGroup
from fuzzshard.case.graph import Block, Call, Child
from fuzzshard.contracts import untried_lines
from fuzzshard.errors import InfraError
from fuzzshard.instruments import INSTRUMENTS, off_lines
from fuzzshard.mending.mend import mends_for
from fuzzshard.mending.source import unfit, unfit_lines
from fuzzshard.parts.engines import BY_GROUPS
from fuzzshard.parts.leaves import affine
from fuzzshard.parts.ops import training
from fuzzshard.runner import Runner
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.device import cuda_devices
from fuzzshard.world.placement import available_cores, place_on_cpu, place_on_devices

PLANTED_FAULT = Path(__file__).parent / "world" / "doubled_gradients.py"
"""What a campaign must find."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the report; ``ok=False`` means that no campaign here could be believed."""

    name: str
    text: str
    ok: bool = True


def clean_case(num_ranks: int) -> Case:
    """Return two wrapped linear layers, two steps of SGD, which every sound torch passes."""
    return Case(
        seed=0,
        model=Block(
            children=(
                Child(name="up", module=affine(6)),
                Child(name="down", module=affine(4)),
            ),
            nodes=(
                Call(name="h", module="up", args=("x",)),
                Call(name="y", module="down", args=("h",)),
            ),
            outputs=("y",),
        ),
        inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),)),
        mesh=Mesh(shard=min(num_ranks, 2)),
        wrap=(WrapGroup(modules=("up",)), WrapGroup(modules=("",))),
        schedule=training(0, 1, zeroed="before"),
    )


def examine(
    start_world: Callable[[WorldConfig], AbstractContextManager[Runner]], config: WorldConfig
) -> Iterator[Check]:
    """Yields the report line by line, as it becomes known."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    yield Check("fuzzshard", f"{fuzzshard.__version__}, python {platform.python_version()}")
    cores = available_cores()
    yield Check(
        "machine", f"{os.cpu_count()} CPUs, of which {cores} may be used, {memory:.0f} GiB memory"
    )
    yield Check("ranks", f"{config.size} on {config.device}")
    if config.device == "cpu":
        worlds = place_on_cpu("auto", config.size, cores)
    else:
        shared = config.ranks_per_device
        worlds = len(place_on_devices("auto", config.size, cuda_devices(), cores, shared))
    yield Check("worlds", f"--worlds auto starts {worlds}, of this many ranks each")
    case = clean_case(config.size)
    try:
        yield from _examine_clean(start_world, config, case)
        yield _examine_fault(start_world, config, case)
    except InfraError as error:
        yield Check("start-up", str(error), ok=False)


def _examine_clean(
    start_world: Callable[[WorldConfig], AbstractContextManager[Runner]],
    config: WorldConfig,
    case: Case,
) -> Iterator[Check]:
    start = time.monotonic()
    with start_world(config) as world:
        verdict = world.run(case)
        first = time.monotonic() - start
        yield Check(
            "torch", f"{world.info['torch']}, {world.info['device']}, {world.info['backend']}"
        )
        yield Check("start-up", f"{first:.1f} s to the end of the first case")
        for line in untried_lines(world.info["torch"]):
            yield Check("", line)
        off = off_lines(world.info)
        yield Check(
            "instruments",
            f"all {len(INSTRUMENTS)} work with this torch" if not off else "some are off",
        )
        for line in off:
            yield Check("", line)
        yield from _examine_mends(world, case)
        start = time.monotonic()
        verdict = world.run(case) if verdict.status is Status.PASS else verdict
        warm = time.monotonic() - start
    if verdict.status is Status.PASS:
        yield Check("clean case", f"passes, in {warm:.2f} s on warm ranks")
    else:
        yield Check("clean case", f"should pass and does not: {_said(verdict)}", ok=False)


def _examine_mends(world: Runner, case: Case) -> Iterator[Check]:
    """Yield whether the known bugs of this torch can be mended, and a clean case passes with all
    mends.
    """
    mends = mends_for()
    reasons = unfit(mends)
    fit = len(mends) - len(reasons)
    yield Check("known bugs", f"{len(mends)} of this torch, of which {fit} can be fixed in memory")
    for line in unfit_lines(reasons):
        yield Check("", line)
    verdict = world.run(case, mends=mends)
    if verdict.status is not Status.PASS:
        yield Check(
            "mended torch", f"should pass the clean case and does not: {_said(verdict)}", ok=False
        )


def _examine_fault(
    start_world: Callable[[WorldConfig], AbstractContextManager[Runner]],
    config: WorldConfig,
    case: Case,
) -> Check:
    with start_world(dataclasses.replace(config, preload=(str(PLANTED_FAULT),))) as world:
        verdict = world.run(case)
    found = verdict.status.is_finding and verdict.findings[0].engine == BY_GROUPS.name
    what = "fully_shard made to double its gradients"
    if found:
        return Check("planted fault", f"found: {what} is {verdict.signature}")
    return Check("planted fault", f"missed: {what} gives {_said(verdict)}", ok=False)


def _said(verdict: Verdict) -> str:
    return " ".join(filter(None, (verdict.status.value, verdict.signature, verdict.message)))
