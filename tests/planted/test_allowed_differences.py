"""What documents let an engine do otherwise is predicted: a fault in the very same tensors is
found.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from cases import BACKWARD, FORWARD, STEP, call, chain, children, groups, make_case
from planting import planting_mend

from fuzzshard.case.case import Case, Checkpoint, Inputs, Optimizer, TensorSpec
from fuzzshard.case.graph import Block
from fuzzshard.case.options import FSDP1
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import BatchNorm
from fuzzshard.parts.ops import ClipGradNorm, ClipGradValue, Forward, LoadState, SaveState, SetMode
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import World

MEND = "optimizer_is_stepped_for_its_state"
"""What stock torch does wrong with the states that a save makes is no part of these cases."""

EVALUATED = (FORWARD, BACKWARD, SetMode(train=False), Forward(batch=1))
TRAINED = (FORWARD, BACKWARD, STEP)
TWO_INPUTS = Inputs(batch=2, tensors=(TensorSpec(size=2, requires_grad=True),) * 2)


class Planted(NamedTuple):
    """A case that passes, and what its fault must look like there."""

    fault: str
    case: Case
    signature: str
    op: int
    name: str
    mends: tuple[str, ...] = ()


def takes_two(*modules: str, outputs: tuple[str, ...] = ("h0",)) -> Block:
    """A model that uses the first of two inputs."""
    nodes = tuple(call(f"h{i}", name, "x0") for i, name in enumerate(modules))
    leaves = {name: Linear(out=2, bias=False) for name in modules}
    returns = "tensor" if len(outputs) == 1 else "tuple"
    inputs = ("x0", "x1")
    return Block(
        children=children(**leaves), nodes=nodes, outputs=outputs, inputs=inputs, returns=returns
    )


RECOMPUTED = make_case(
    chain(n=BatchNorm(), b=Linear(out=3)),
    EVALUATED,
    checkpoints=(Checkpoint(module="n", implementation="utils"),),
    wrap=groups(""),
    engines=("fully_shard",),
)
BY_A_SCHEDULER = make_case(
    chain(a=Linear(out=3)),
    (SaveState(), STEP, *TRAINED),
    optimizer=Optimizer(kind="asgd", lr=0.5, lr_scheduler="step_lr"),
    wrap=groups(""),
    engines=("fully_shard",),
)
FOUND = {
    "statistics of a batch norm that is recomputed": Planted(
        "statistics_revert",
        RECOMPUTED,
        "divergence/fully_shard/output",
        3,
        "output 0 of the root",
    ),
    "statistics that a graph recomputes": Planted(
        "doubles_statistics",
        msgspec.structs.replace(RECOMPUTED, compile="aot_eager"),
        "divergence/fully_shard/output",
        3,
        "output 0 of the root",
    ),
    "the gradient of an input that no backward comes to": Planted(
        "joins_inputs_of_no_group",
        make_case(
            takes_two("a"),
            (FORWARD, BACKWARD),
            inputs=TWO_INPUTS,
            wrap=groups("a", ""),
            engines=("fully_shard",),
        ),
        "divergence/fully_shard/input_gradient/unexpected",
        1,
        "input 1 of batch 0",
    ),
    "zeros in a flat gradient that is clipped": Planted(
        "clips_flat_zeros_to_no_number",
        make_case(
            takes_two("a", "b", outputs=("h0", "h1")),
            (Forward(outputs=(0,)), BACKWARD, ClipGradValue(clip_value=0.1)),
            inputs=TWO_INPUTS,
            wrap=groups(""),
            engines=("fsdp1",),
            fsdp1=FSDP1(use_orig_params=True),
        ),
        "divergence/fsdp1/gradient",
        2,
        "b.weight",
    ),
    "a gradient after the statistics were evaluated": Planted(
        "doubles_gradients_of_evaluations",
        msgspec.structs.replace(RECOMPUTED, schedule=(*EVALUATED, BACKWARD)),
        "divergence/fully_shard/gradient",
        4,
        "b.bias",
    ),
    "a parameter whose state a save makes": Planted(
        "asgd_goes_too_far",
        BY_A_SCHEDULER,
        "divergence/fully_shard/parameter",
        4,
        "a.bias",
        (MEND,),
    ),
    "a state that a save makes": Planted(
        "makes_states_of_another_rate",
        BY_A_SCHEDULER,
        "divergence/fully_shard/resume",
        0,
        "eta of a.bias",
        (MEND,),
    ),
    "a scalar that a load casts": Planted(
        "loads_rates_with_fewer_bits",
        msgspec.structs.replace(
            BY_A_SCHEDULER, schedule=(SaveState(), LoadState(), STEP, *TRAINED), dtype="float64"
        ),
        "divergence/fully_shard/resume",
        1,
        "eta of a.bias",
        (MEND,),
    ),
}


@pytest.mark.parametrize("planted", FOUND.values(), ids=FOUND.keys())
def test_a_fault_in_what_is_allowed_is_found(
    four_ranks: World, tmp_path: Path, planted: Planted
) -> None:
    assert four_ranks.run(planted.case, mends=planted.mends).status is Status.PASS
    verdict = run_with(four_ranks, tmp_path, planted)
    assert verdict.signature == planted.signature, verdict.findings[:3]
    first = verdict.findings[0]
    assert (first.op, first.name) == (planted.op, planted.name)


def test_what_only_a_finer_run_could_judge_is_counted(four_ranks: World, tmp_path: Path) -> None:
    """FSDP1 computes norms in float32, so that it has no run in float64."""
    planted = FOUND["zeros in a flat gradient that is clipped"]
    schedule = (*planted.case.schedule[:2], ClipGradNorm(max_norm=0.1))
    case = msgspec.structs.replace(planted.case, schedule=schedule)
    assert four_ranks.run(case).compared["fsdp1"].skipped == 0
    verdict = run_with(four_ranks, tmp_path, planted._replace(case=case))
    assert verdict.compared["fsdp1"].skipped > 0


def run_with(world: World, folder: Path, planted: Planted) -> Verdict:
    """What a world says of a case on ranks that have its fault."""
    fault = planting_mend(folder, planted.fault)
    return world.run(planted.case, mends=(*planted.mends, str(fault)))
