"""What torch does wrong with options and states of its optimizers, and what mends do to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import BACKWARD, FORWARD, STEP, TWO_STEPS, ZERO, chain, make_case
from planting import planting_mend

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case, Optimizer
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import CorruptState, LoadState, SaveState, SetRequiresGrad
from fuzzshard.verdict import Status
from fuzzshard.world import World

RULE, FIRST, STATE = (
    *("fused_optimizers_have_no_rule", "fused_sgd_has_no_first_gradients"),
    "new_optimizer_loads_no_state",
)
FUSED_MOMENTUM = Optimizer(momentum=0.5, flags=("fused",))
TRAIN = (FORWARD, BACKWARD, STEP, ZERO)
RESUME = (SaveState(via="stateful"), CorruptState(how="rebuild"), LoadState(), *TRAIN)
SHARDED = ("fully_shard",)


def resumed(**options: object) -> Case:
    return make_case(schedule=(*TRAIN, *RESUME), engines=SHARDED, **options)


WRONG = {
    "fused SGD steps shards": (
        *(RULE, "crash/fully_shard/NotImplementedError"),
        make_case(optimizer=FUSED_MOMENTUM, engines=SHARDED),
    ),
    "fused Adagrad steps shards with a rate that is a tensor": (
        *(RULE, "crash/fully_shard/NotImplementedError"),
        make_case(
            optimizer=Optimizer(kind="adagrad", flags=("fused", "tensor_lr")), engines=SHARDED
        ),
    ),
    "Rprop steps shards in lists": (
        *(RULE, "crash/fully_shard/NotImplementedError"),
        make_case(
            schedule=TWO_STEPS, optimizer=Optimizer(kind="rprop", foreach=True), engines=SHARDED
        ),
    ),
    "fused SGD with a momentum gets gradients of a module later": (
        *(FIRST, "crash/ddp/TypeError"),
        make_case(
            schedule=(
                *(SetRequiresGrad(target="a", value=False), *TRAIN),
                *(SetRequiresGrad(target="a", value=True), *TRAIN),
            ),
            optimizer=FUSED_MOMENTUM,
            engines=("ddp",),
        ),
    ),
    "fused SGD with a momentum is skipped at first": (
        *(FIRST, "divergence/ddp/"),
        make_case(
            schedule=TRAIN * 3,
            optimizer=Optimizer(momentum=0.5, flags=("fused",), grad_scaler="infinite"),
            engines=("ddp",),
        ),
    ),
    "a new optimizer loads its moments": (
        *(STATE, "divergence/fully_shard/resume/missing"),
        resumed(optimizer=Optimizer(kind="adamw", lr=0.01)),
    ),
    "a new optimizer loads the momentum of what was trained": (
        *(STATE, "divergence/fully_shard/resume/missing"),
        make_case(
            schedule=(
                *(SetRequiresGrad(target="a", value=False), *TRAIN),
                *(SetRequiresGrad(target="a", value=True), *RESUME),
            ),
            optimizer=Optimizer(momentum=0.5),
            engines=SHARDED,
        ),
    ),
}


@pytest.mark.parametrize(("mend", "signature", "case"), WRONG.values(), ids=WRONG.keys())
def test_torch_is_wrong_until_it_is_mended(
    two_ranks: World, mend: str, signature: str, case: Case
) -> None:
    validate(case, world_size=2)
    assert (two_ranks.run(case).signature or "").startswith(signature)
    verdict = two_ranks.run(case, mends=(mend,))
    assert (verdict.status, verdict.findings) == (Status.PASS, ())
    assert not verdict.notes


def test_a_loaded_state_that_is_lost_is_found_once_torch_is_mended(
    two_ranks: World, tmp_path: Path
) -> None:
    fault = str(planting_mend(tmp_path, "optimizer_state_lost"))
    _, signature, case = WRONG["a new optimizer loads its moments"]
    assert two_ranks.run(case, mends=(STATE, fault)).signature == signature


RIGHT = {
    "an optimizer without states": resumed(),
    "an optimizer that makes its states before it steps": resumed(
        optimizer=Optimizer(kind="adagrad", lr=0.01)
    ),
    "a state of before the first step": make_case(
        chain(a=Linear(out=4)),
        (*RESUME, *TRAIN),
        optimizer=Optimizer(kind="adam", lr=0.01),
        engines=SHARDED,
    ),
}


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT.keys())
@pytest.mark.parametrize("mends", [(), (STATE,)], ids=["stock", "mended"])
def test_a_new_optimizer_resumes(two_ranks: World, mends: tuple[str, ...], case: Case) -> None:
    validate(case, world_size=2)
    verdict = two_ranks.run(case, mends=mends)
    assert (verdict.status, verdict.findings) == (Status.PASS, ())
