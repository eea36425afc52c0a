"""A rank without peers suspects what shows in structure, and nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import ROOT, TWO_STEPS, colwise, groups, make_case, rowwise

from fuzzshard.case.case import Mesh
from fuzzshard.contracts import FAKE_COLLECTIVES_HAVE_RESULTS
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.ops import LoadState, SaveState
from fuzzshard.world import WorldConfig
from fuzzshard.world.screen import MOST_RANKS, Screen, screened
from fuzzshard.world.start import end_ranks, start_ranks

FAULTS = Path(__file__).parents[1] / "planted" / "faults"
MESHES = (
    *(Mesh(shard=shard) for shard in (1, 2, 3, 64)),
    *(Mesh(replicate=8, shard=8), Mesh(replicate=4, shard=8, tensor=2)),
    Mesh(replicate=2, shard=4, tensor=2, pipeline=2),
)


PLAN = (colwise("a"), rowwise("b"))


def with_fault(fault: str) -> Screen:
    return Screen(preload=(str(FAULTS / f"{fault}.py"),))


@pytest.fixture(scope="module")
def first() -> Iterator[Screen]:
    with Screen() as screen:
        yield screen


@pytest.fixture(scope="module")
def last() -> Iterator[Screen]:
    with Screen("last") as screen:
        yield screen


@pytest.mark.parametrize("mesh", MESHES, ids=Mesh.text)
def test_neither_end_of_a_mesh_suspects_what_torch_does(
    first: Screen, last: Screen, mesh: Mesh
) -> None:
    case = make_case(mesh=mesh, tensor_parallel=PLAN if mesh.tensor else ())
    for screen in (first, last):
        before = screen.world.pids
        assert screen.suspicion(case) is None
        assert before in ([], screen.world.pids), "it raised or died"


def test_a_mesh_that_is_too_large_is_an_invalid_case(first: Screen) -> None:
    with pytest.raises(InvalidCase, match="needs 65 ranks"):
        first.suspicion(make_case(mesh=MOST_RANKS + 1))


@pytest.mark.parametrize(
    ("fault", "signature"),
    [
        ("raises_in_post_backward", "crash/fully_shard/AssertionError in backward"),
        ("not_resharded", "divergence/fully_shard/registration"),
        ("gathers_twice", "divergence/fully_shard/communication"),
        ("leaves_a_hook", "divergence/fully_shard/leak/hook"),
        ("late_post_backward", "divergence/fully_shard/hooks"),
    ],
)
def test_a_fault_in_structure_is_suspected_by_the_name_of_its_finding(
    fault: str, signature: str
) -> None:
    with with_fault(fault) as screen:
        wrap = groups("a", "b", ROOT, reshard=False if fault == "gathers_twice" else None)
        suspicion = screen.suspicion(make_case(mesh=Mesh(replicate=2, shard=32), wrap=wrap))
        assert suspicion is not None
        assert suspicion.signature == signature


def test_a_wrong_value_is_not_suspected() -> None:
    with with_fault("wrong_gradient") as screen:
        assert screen.suspicion(make_case()) is None


def test_an_abort_is_suspected_and_the_next_case_finds_a_fresh_process() -> None:
    with with_fault("aborts_on_one_rank") as screen:
        screen.world.config = WorldConfig(2, preload=screen.world.config.preload, screens="last")
        suspicion = screen.suspicion(make_case())
        assert suspicion is not None
        assert suspicion.signature == "desync/fully_shard"
        assert [finding.rank for finding in suspicion.findings] == [1]
        assert screen.suspicion(make_case(engines=("fsdp1",))) is None
        assert screen.world.pids


def test_a_process_that_somebody_kills_is_no_suspicion(first: Screen) -> None:
    first.world.start()
    os.kill(first.world.pids[0], signal.SIGKILL)
    assert first.suspicion(make_case()) is None
    with with_fault("not_resharded") as screen:
        screen.world.start()
        os.kill(screen.world.pids[0], signal.SIGKILL)
        assert screen.suspicion(make_case()) is None
        assert screen.suspicion(make_case()) is not None


def test_what_needs_peers_is_not_screened() -> None:
    on_disk = make_case(schedule=(*TWO_STEPS, SaveState(via="dcp"), LoadState()))
    assert screened(on_disk) is None
    assert screened(make_case(compile="eager")) is None
    assert screened(make_case(engines=("ddp",))) is None
    several = screened(make_case(engines=("ddp", "fully_shard")))
    assert several is not None
    assert several.engines == ("fully_shard",)


def test_replicate_is_screened_where_fake_collectives_have_results(first: Screen) -> None:
    case = make_case(engines=("replicate",))
    assert (screened(case) is not None) == FAKE_COLLECTIVES_HAVE_RESULTS.holds()
    assert first.suspicion(case) is None


def test_real_ranks_prove_the_instruments_of_a_screen() -> None:
    config = WorldConfig(MOST_RANKS, screens="first")
    ranks = start_ranks(config)
    end_ranks(ranks.processes)
    assert len(ranks.processes) == 1
    assert ranks.info["backend"] == "fake"
