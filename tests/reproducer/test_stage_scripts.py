"""Scripts of pipeline schedules that evaluate, clip, save and load: they pass on stock torch, and
fail under a planted fault.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import AGAIN, BACKWARD, FORWARD, ROOT, STEP, ZERO, chain, groups, make_case
from msgspec.structs import replace
from planting import fault_file

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case, Inputs, Mesh, Optimizer, TensorSpec
from fuzzshard.case.options import Pipelining
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import (
    ClipGradNorm,
    CorruptState,
    Forward,
    LoadState,
    Reshard,
    SaveState,
    SetMode,
    TakeStateDict,
)
from fuzzshard.reproducer import script
from fuzzshard.verdict import Finding

ITERATION = (FORWARD, AGAIN, BACKWARD)
EVALUATION = (SetMode(train=False), Forward(grad=False), Forward(batch=1, grad=False))
CASE = make_case(
    chain(a=Linear(out=4), b=Linear(out=3), c=Linear(out=5), d=Linear(out=5)),
    (
        *(*EVALUATION, SetMode(train=True), *ITERATION, ClipGradNorm(max_norm=0.1), STEP, ZERO),
        *(SaveState(), CorruptState(how="rebuild"), LoadState(assign=True), TakeStateDict()),
        *(*ITERATION, STEP, *EVALUATION, Reshard()),
    ),
    mesh=Mesh(pipeline=2, shard=1),
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=5),)),
    wrap=groups("b", ROOT),
    engines=("pipelining",),
    pipelining=Pipelining(schedule_class="interleaved_1f1b"),
    optimizer=Optimizer(kind="adam"),
)
END = len(CASE.schedule) - 1
CLIPPED, TRAINED = 7, END - len(EVALUATION) - 1


def finding(oracle: str, op: int) -> Finding:
    fields = {"observed": "", "expected": "", "comparison": "bounded", "bound": 1e-6}
    return Finding(oracle=oracle, engine="pipelining", op=op, name="c.weight", **fields)


@pytest.mark.parametrize(
    ("fault", "oracle", "op"),
    [
        ("", "exception", END),
        ("clips_by_the_norm_of_a_stage", "gradient", CLIPPED),
        ("evaluations_end_training", "gradient", CLIPPED - 1),
        ("states_of_stages_are_not_loaded", "parameter", TRAINED),
    ],
)
def test_a_script_of_stages_fails_under_a_fault_and_passes_without(
    run_script, tmp_path: Path, fault: str, oracle: str, op: int
) -> None:
    validate(CASE)
    text = script(CASE, finding=finding(oracle, op))
    passing = run_script(text, 2)
    assert not passing.fails, f"{text}\n{passing.output}"
    if fault:
        planted = tmp_path / "planted.py"
        planted.write_text(f"{fault_file(fault).read_text()}\n\napply()\n")
        broken = run_script(text, 2, preload=[planted])
        assert broken.fails, text
        assert "expected" in broken.output


FIRST_HAS_NONE = make_case(
    chain(a=Activation(), c=Linear(out=5)),
    (*ITERATION, ClipGradNorm(max_norm=0.1), STEP, ZERO),
    mesh=Mesh(pipeline=2, shard=1),
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=5),)),
    wrap=groups(ROOT),
    engines=("pipelining",),
)


@pytest.mark.parametrize(
    "case",
    [
        FIRST_HAS_NONE,
        replace(CASE, schedule=FIRST_HAS_NONE.schedule, optimizer=Optimizer(exclude=("a", "c"))),
    ],
    ids=["no parameters", "parameters that are left out"],
)
def test_the_optimizer_of_a_rank_whose_stages_have_nothing_for_it_is_made(
    run_script, case: Case
) -> None:
    validate(case)
    text = script(case, finding=finding("exception", len(case.schedule) - 1))
    passing = run_script(text, 2)
    assert not passing.fails, f"{text}\n{passing.output}"
