"""Hypothesis alone shrinks a case that fails on real ranks, in somebody's own test."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzzshard.case import Case
from fuzzshard.doctor import PLANTED_FAULT
from fuzzshard.strategies import cases, meshes
from fuzzshard.world import World, WorldConfig

WITH_FROZEN = """\
    if all(parameter.requires_grad for parameter in module.parameters()):
        return wrapped
"""


@pytest.mark.slow
def test_a_fault_with_frozen_parameters_shrinks_within_300_runs(tmp_path: Path) -> None:
    number = 1
    wraps = "    wrapped = fully_shard(module, mesh=mesh, **options)\n"
    planted = PLANTED_FAULT.read_text()
    assert wraps in planted
    preload = tmp_path / "fault.py"
    preload.write_text(planted.replace(wraps, wraps + WITH_FROZEN))
    failed: list[Case] = []
    tried: list[float] = []

    with World(WorldConfig(size=2, preload=(str(preload),))) as world:

        @seed(number)
        @settings(
            max_examples=300,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=[HealthCheck.too_slow],  # another test may have all cores
        )
        @given(case=cases(mesh=meshes(max_ranks=2), engines=("fully_shard",)))
        def test(case: Case) -> None:
            verdict = world.run(case)
            if failed:
                tried.append(time.monotonic())
            if verdict.signature == "divergence/fully_shard/gradient":
                failed.append(case)
                tried.append(time.monotonic())
                raise AssertionError(verdict.signature)

        with pytest.raises(AssertionError, match="gradient"):
            test()
    case, seconds = failed[-1], tried[-1] - tried[0]
    said = f"seed {number}: {len(tried)} runs, {seconds:.0f} s, {case!r}"
    print(said)
    assert case.freezes, said
    assert len(case.schedule) <= 6, said
    assert len(tried) < 300, said  # of 0.05 s each; 0.6 s where ten jobs share two cores
