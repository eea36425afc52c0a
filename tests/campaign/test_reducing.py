"""Shrinking on several worlds, and on CPU ranks what was found on CUDA."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

import msgspec
import pytest
from fake_campaign import PASS, FakeWorld, divergence, make_case

from fuzzshard.campaign.control import Control, cpu_ranks
from fuzzshard.campaign.judge import Stopped
from fuzzshard.campaign.reduce import confirm_and_shrink
from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.parts.ops import Step
from fuzzshard.runner import Runner, StartWorld
from fuzzshard.shrink import shrink
from fuzzshard.verdict import Verdict
from fuzzshard.world.config import WorldConfig

FOUND = make_case(5, norm=True, ranks=4)
Judge = Callable[[Case], Verdict]


@pytest.fixture(autouse=True)
def _real_shrinking(_no_shrinking: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzzshard.campaign.reduce.shrink", shrink)


def needs_a_step(case: Case) -> Verdict:
    return divergence() if Step() in case.schedule else PASS


def passes(case: Case) -> Verdict:
    return PASS


def pinned(case: Case) -> Case:
    """Cannot run on the CPU."""
    return msgspec.structs.replace(case, wrap=(WrapGroup(modules=("",), offload="pinned"),))


def world(judge: Judge, backend: str = "nccl") -> FakeWorld:
    fake = FakeWorld(judge, [])
    fake.info["backend"] = backend
    return fake


def cpu(judge: Judge, sizes: list[int]) -> StartWorld:
    @contextlib.contextmanager
    def start(size: int) -> Iterator[Runner]:
        sizes.append(size)
        yield world(judge, "gloo")

    return start


def test_a_world_that_is_stopped_leaves_the_smallest_case_so_far() -> None:
    runs = 0

    def judge(case: Case) -> Verdict:
        nonlocal runs
        runs += 1
        if runs > 8:
            raise Stopped
        return needs_a_step(case)

    judged = confirm_and_shrink(world(judge), FOUND, divergence())
    assert judged.note.startswith("shrinking was interrupted")
    assert judged.case != FOUND


def test_a_finding_that_the_cpu_shows_as_well_is_shrunk_there() -> None:
    sizes: list[int] = []
    cuda = world(needs_a_step)
    judged = confirm_and_shrink(cuda, FOUND, divergence(), on_cpu=cpu(needs_a_step, sizes))
    assert judged.info["backend"] == "gloo"
    assert judged.case.mesh.size == 2
    assert (sizes, cuda.log) == ([4], [])


def test_a_finding_of_cuda_alone_is_shrunk_there() -> None:
    sizes: list[int] = []
    judged = confirm_and_shrink(
        world(needs_a_step), FOUND, divergence(), on_cpu=cpu(passes, sizes)
    )
    assert judged.info["backend"] == "nccl"
    assert judged.case.mesh.size == 2
    assert sizes == [4, 2]


def test_what_needs_cuda_only_until_it_is_shrunk_ends_on_the_cpu() -> None:
    sizes: list[int] = []
    cuda = world(needs_a_step)
    judged = confirm_and_shrink(cuda, pinned(FOUND), divergence(), on_cpu=cpu(needs_a_step, sizes))
    assert judged.info["backend"] == "gloo"
    assert judged.confirmation.text() == "3 of 3 runs"
    assert sizes == [2]


def test_a_finding_that_the_cpu_shows_sometimes_stays_one_of_cuda() -> None:
    turns = iter([divergence(), PASS] * 100)
    judged = confirm_and_shrink(
        world(needs_a_step), FOUND, divergence(), on_cpu=cpu(lambda case: next(turns), [])
    )
    assert judged.info["backend"] == "nccl"


@pytest.mark.parametrize("cpu_runs", [0, 2])
def test_a_campaign_that_stops_while_the_cpu_looks_at_the_shrunk_case_keeps_it(
    cpu_runs: int,
) -> None:
    turns = itertools.count()

    def stopped(case: Case) -> Verdict:
        if next(turns) >= cpu_runs:
            raise Stopped
        return divergence()

    judged = confirm_and_shrink(
        world(needs_a_step), pinned(FOUND), divergence(), on_cpu=cpu(stopped, [])
    )
    assert judged.case.mesh.size == 2
    assert (judged.info["backend"], judged.confirmation.text()) == ("nccl", "3 of 3 runs")
    assert judged.cut_off


def test_cpu_ranks_are_those_of_the_same_settings_and_end_with_the_block() -> None:
    started: list[WorldConfig] = []
    fakes: list[FakeWorld] = []

    def make_world(config: WorldConfig) -> FakeWorld:
        started.append(config)
        fakes.append(world(needs_a_step))
        return fakes[-1]

    config = WorldConfig(size=8, device="cuda", preload=("fault.py",))
    start = cpu_ranks(config, make_world, Control(None))
    assert start is not None
    with start(2):
        pass
    assert started == [WorldConfig(size=2, preload=("fault.py",))]
    assert [fake.log for fake in fakes] == [["close"]]
    assert cpu_ranks(WorldConfig(size=2), make_world, Control(None)) is None
