"""Forwards within ``torch.autocast``: what they train, where they are legal, what is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import BACKWARD, STEP, chain, groups, make_case
from planting import planting_mend

from fuzzshard.analysis.checker import Checker
from fuzzshard.analysis.dtypes import last_bit, lifted
from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case, EngineName, WrapGroup
from fuzzshard.case.options import Precision
from fuzzshard.engines.registry import not_applicable
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.reproducer import script
from fuzzshard.verdict import Status
from fuzzshard.world import World

LOWERED = ops.Forward(autocast="bfloat16")


def lowered(engine: EngineName = "fully_shard", **options: Any) -> Case:
    given: dict[str, Any] = {
        "wrap": groups("a", ""),
        "schedule": (LOWERED, BACKWARD, STEP),
    } | options
    return make_case(chain(a=Linear(out=5), b=Linear(out=3)), engines=(engine,), **given)


def why_not(case: Case) -> str:
    why = Checker(case, inferred(case)).why_not(LOWERED)
    return "" if why is None else why.problem


@pytest.mark.parametrize("engine", ["fully_shard", "ddp", "fsdp1", "simple_fsdp"])
def test_engines_train_within_it_to_what_plain_training_does(
    two_ranks: World, engine: EngineName
) -> None:
    verdict = two_ranks.run(lowered(engine))
    assert (verdict.status, verdict.findings) == (Status.PASS, ())
    assert engine not in verdict.notes


def test_an_engine_that_leaves_it_is_found(two_ranks: World, tmp_path: Path) -> None:
    fault = planting_mend(tmp_path, "computes_outside_of_autocast")
    verdict = two_ranks.run(lowered(), mends=(str(fault),))
    assert (verdict.status, verdict.findings[0].engine) == (Status.DIVERGENCE, "fully_shard")


def test_it_computes_in_half_precision_and_finer_runs_do_not() -> None:
    assert last_bit(lowered()) == 2.0**-7
    assert last_bit(lifted(lowered())) == 2.0**-23


def test_it_casts_float32_alone_of_modules_in_full_precision() -> None:
    assert not why_not(lowered())
    assert "float32 alone" in why_not(lowered(dtype="float64"))
    half = WrapGroup(modules=("",), precision=Precision(param="bfloat16"))
    assert "full precision" in why_not(lowered(wrap=(half,)))


def test_a_pipeline_runs_backwards_within_its_forwards() -> None:
    excluded = not_applicable(lowered(), "pipelining")
    assert excluded is not None


def test_scripts_keep_the_backward_out_of_it() -> None:
    lines = script(lowered(), signature="divergence/fully_shard/gradient").splitlines()
    start = next(i for i, line in enumerate(lines) if "with torch.autocast(device" in line)
    assert lines[start + 1].startswith(" " * (len(lines[start]) - len(lines[start].lstrip()) + 4))
    assert "backward()" not in lines[start + 1]
