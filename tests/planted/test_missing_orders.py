"""What waits in ``fully_shard``, taken away: each case that runs such a line shows the race."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import ROOT, TWO_STEPS, groups, make_case

from fuzzshard.case.case import Case, Mesh
from fuzzshard.verdict import Finding, Status
from fuzzshard.world import World, WorldConfig

pytestmark = pytest.mark.slow

PLANTED = Path(__file__).parents[2] / "benchmarks" / "faults" / "streams" / "mutants"
CASE = make_case(observe="races", engines=("fully_shard",), wrap=groups("a", "b", ROOT))


def races(fault: str, case: Case = CASE) -> tuple[Finding, ...]:
    config = WorldConfig(size=2, preload=(str(PLANTED / f"{fault}.py"),))
    with World(config) as world:
        verdict = world.run(case)
    assert verdict.status is Status.DIVERGENCE
    assert {finding.oracle for finding in verdict.findings} == {"race"}
    return verdict.findings


def test_an_all_gather_that_is_not_waited_for_names_both_lines() -> None:
    first, *_ = races("copy_out_waits_for_gather")
    assert first.detail == "__call__ and _copy_all_gather_outputs"
    assert first.op == 0
    assert "split_with_sizes_copy" in first.observed
    assert "c10d._allgather_base_" in first.observed
    assert first.observed.count("_fsdp_collectives.py:") == 2
    assert first.severity == "silent"


def test_a_step_that_is_not_waited_for_names_the_parameter() -> None:
    found = races("forward_waits_for_step_copy_in")
    assert any("a.weight" in finding.observed for finding in found)
    assert any("other code" in finding.detail for finding in found)


def test_memory_that_is_handed_out_too_early_says_so() -> None:
    found = races("gather_is_not_kept")
    assert any("handed out again" in finding.observed for finding in found)


def test_the_end_of_a_reduction_shows_in_the_step() -> None:
    hybrid = make_case(
        None,
        TWO_STEPS,
        observe="races",
        engines=("fully_shard",),
        mesh=Mesh(replicate=2, shard=1),
    )
    found = races("end_waits_for_reductions", hybrid)
    assert any("the gradient of" in finding.observed for finding in found)


def test_without_a_fault_nothing_races() -> None:
    with World(WorldConfig(size=2)) as world:
        verdict = world.run(CASE)
        assert world.info.get("instruments off", "") == ""
    assert verdict.status is Status.PASS, verdict.findings
