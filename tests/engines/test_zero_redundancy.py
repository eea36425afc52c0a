"""DDP with ``ZeroRedundancyOptimizer``: what it trains, and what it is not run with."""

from __future__ import annotations

import pytest
from cases import BACKWARD, FORWARD, STEP, TWO_STEPS, chain, colwise, float_inputs, make_case

from fuzzshard.case.case import Case, Freeze, Mesh, Optimizer, ParameterDtype
from fuzzshard.engines.registry import not_applicable
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import LoadState, SaveState, SetFlag, SetRequiresGrad
from fuzzshard.reproducer.assemble import script
from fuzzshard.reproducer.forked import ForkedRanks
from fuzzshard.verdict import Status
from fuzzshard.world import World

ENGINE = "zero_redundancy"
ADAM = Optimizer(kind="adam", weight_decay=0.125)
PASSES = {
    "momentum": make_case(
        schedule=TWO_STEPS, optimizer=Optimizer(momentum=0.5), engines=(ENGINE,)
    ),
    "Adam on a mesh of two axes": make_case(
        schedule=TWO_STEPS, optimizer=ADAM, engines=(ENGINE,), mesh=Mesh(replicate=2, shard=2)
    ),
    "ranks without a parameter": make_case(
        chain(a=Linear(out=4, bias=False)),
        TWO_STEPS,
        optimizer=ADAM,
        engines=(ENGINE,),
        mesh=Mesh(shard=4),
    ),
    "pipelines": make_case(
        schedule=TWO_STEPS, optimizer=ADAM, engines=(ENGINE,), mesh=Mesh(shard=2, pipeline=2)
    ),
    "parameters that thaw": make_case(
        schedule=(*TWO_STEPS, SetRequiresGrad(target="a", value=False), *TWO_STEPS),
        optimizer=ADAM,
        engines=(ENGINE,),
        freezes=(Freeze(target="b.bias"),),
    ),
    "accumulation": make_case(
        schedule=(
            SetFlag(flag="requires_gradient_sync", value=False),
            *(FORWARD, BACKWARD),
            SetFlag(flag="requires_gradient_sync", value=True),
            *TWO_STEPS,
        ),
        optimizer=ADAM,
        engines=(ENGINE, "ddp"),
    ),
}


@pytest.mark.parametrize("case", PASSES.values(), ids=PASSES.keys())
def test_it_trains_to_what_plain_training_does(four_ranks: World, case: Case) -> None:
    verdict = four_ranks.run(case)
    assert (verdict.status, verdict.findings) == (Status.PASS, ())
    assert ENGINE not in verdict.notes


EXCLUDED: dict[str, tuple[Case, str]] = {
    "a state dict": (
        make_case(
            schedule=(FORWARD, BACKWARD, STEP, SaveState(via="state_dict"), LoadState()),
            engines=(ENGINE,),
        ),
        "is saved",
    ),
    "a checkpoint": (
        make_case(schedule=(FORWARD, BACKWARD, STEP, SaveState()), engines=(ENGINE,)),
        "is saved",
    ),
    "DTensors": (
        make_case(
            inputs=float_inputs(),
            mesh=Mesh(shard=2, tensor=2),
            tensor_parallel=(colwise("a"),),
            engines=(ENGINE,),
        ),
        "not all of one type",
    ),
    "two dtypes": (
        make_case(
            freezes=(Freeze(target="a"),),
            dtypes=(ParameterDtype(target="a", dtype="bfloat16"),),
            engines=(ENGINE,),
        ),
        "not all of one type",
    ),
}


@pytest.mark.parametrize(("case", "why"), EXCLUDED.values(), ids=EXCLUDED.keys())
def test_what_its_documentation_does_not_cover_is_excluded(case: Case, why: str) -> None:
    excluded = not_applicable(case, ENGINE)
    assert excluded is not None
    assert why in excluded.reason
    assert not_applicable(case, "ddp") != excluded


@pytest.mark.slow
def test_its_script_runs_on_two_ranks(run_script: ForkedRanks) -> None:
    case = make_case(schedule=TWO_STEPS, optimizer=ADAM, engines=(ENGINE,))
    text = script(case, signature=f"divergence/{ENGINE}/parameter", torch_version="2.15.0")
    assert "ZeroRedundancyOptimizer(" in text
    assert "optimizer_class=torch.optim.Adam" in text
    result = run_script(text, case.mesh.size)
    assert result.codes == (0, 0), result.output
