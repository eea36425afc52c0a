"""What a recomputation under ``replicate`` leaves to modules that are compiled after it."""

from __future__ import annotations

from pathlib import Path

from cases import BACKWARD, FORWARD, ROOT, make_case

from fuzzshard.case.case import DDP, Checkpoint
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig

MENDS = ("recomputation_begins_an_iteration_of_replicate",)
UNTIDY = """
from fuzzshard.training import housekeeping

housekeeping.DistributedDataParallel = type("Other", (), {})
"""
"""Leaves what is set for the whole process as it is between two cases."""


def test_a_recomputation_that_ends_early_is_no_forward_for_what_is_compiled_then(
    tmp_path: Path,
) -> None:
    untidy = tmp_path / "untidy.py"
    untidy.write_text(UNTIDY)
    recomputed = make_case(
        schedule=(FORWARD, BACKWARD),
        checkpoints=(Checkpoint(module=ROOT, implementation="utils"),),
        ddp=DDP(buckets="few_each"),  # DDPOptimizer splits a graph at buckets that are small
        engines=("replicate",),
    )
    compiled = make_case(compile="eager", engines=("fully_shard",))
    with World(WorldConfig(size=2, preload=(str(untidy),))) as world:
        verdicts = [world.run(case, mends=MENDS) for case in (recomputed, compiled)]
    assert [each.status for each in verdicts] == [Status.PASS, Status.PASS]
