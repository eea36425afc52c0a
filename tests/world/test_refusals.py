"""What torch documents that it refuses is REJECTED with torch's own text, and accuses nobody."""

from __future__ import annotations

import pytest
from cases import (
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    call,
    chain,
    children,
    float_inputs,
    groups,
    make_case,
    tensor_op,
)
from msgspec.structs import replace
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

from fuzzshard.case.case import Case, Freeze, Optimizer, RankBatch, Tie, WrapGroup
from fuzzshard.case.graph import Alias, Block, Linear
from fuzzshard.case.options import Precision
from fuzzshard.case.schedule import Forward, ZeroGrad
from fuzzshard.verdict import Status
from fuzzshard.world import World

TIES_ARE_CHECKED = hasattr(FSDPState, "_validate_no_duplicate_params")
"""torch up to 2.11 accepts weights tied across groups and trains them wrong, which is a finding there."""

SHARED = "is shared with a parameter already managed by another FSDP group"
TIED = chain(a=Linear(out=5), b=Linear(out=5))
ADDS_IN_PLACE = Block(
    children=children(a=Linear(out=5)),
    nodes=(call("h0", "a", "x"), tensor_op("h1", "iadd", "h0", "x")),
    outputs=("h1",),
)

REFUSED = {
    "weights tied across groups": (
        make_case(TIED, ties=(Tie(parameter="b.weight", source="a.weight"),)),
        SHARED,
    ),
    "a list group as the root": (make_case(wrap=groups(("a", "b"))), "requires a single root module"),
    "a forward of a part before the root": (
        make_case(schedule=(Forward(target="b"), BACKWARD, STEP, FORWARD, BACKWARD)),
        "FSDP state has already been lazily initialized for b",
    ),
    "foreach over parameters of which some are no DTensors": (
        make_case(
            schedule=(FORWARD, BACKWARD, ZeroGrad(set_to_none=False)),
            wrap=groups("a"),
            optimizer=Optimizer(foreach=True),
        ),
        "got mixed torch.Tensor and DTensor",
    ),
    "an output that is a view and is changed in place": (
        make_case(ADDS_IN_PLACE, inputs=float_inputs(seq=2), engines=("fully_shard",)),
        "returned a view tensor",
    ),
}


@pytest.mark.parametrize(("case", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_fully_shard_refuses(four_ranks: World, case: Case, text: str) -> None:
    if text == SHARED and not TIES_ARE_CHECKED:
        pytest.skip("this torch does not refuse it")
    verdict = four_ranks.run(case)
    assert verdict.status is Status.REJECTED
    assert verdict.notes["fully_shard"].startswith("refused: ")
    assert text in verdict.notes["fully_shard"]
    assert text in verdict.message
    assert verdict.findings == ()


def test_an_output_that_is_no_view_may_be_changed_in_place(four_ranks: World) -> None:
    assert four_ranks.run(make_case(ADDS_IN_PLACE)).status is Status.PASS


def test_what_only_a_rank_without_rows_may_refuse_is_not_asked_for(four_ranks: World) -> None:
    """In float16 only the output of a linear layer over no rows is a view; the other rank would wait."""
    inputs = replace(float_inputs(seq=3), rank_batches=(RankBatch(rank=1, rows=0),))
    wrap = (WrapGroup(modules=("a",), precision=Precision(param="float16", output="float32")),)
    case = make_case(ADDS_IN_PLACE, inputs=inputs, wrap=wrap, engines=("fully_shard",))
    verdict = four_ranks.run(case)
    assert verdict.status is Status.PASS, verdict
    assert "the rank without rows" in verdict.notes["fully_shard"]


def test_ddp_refuses_a_model_without_trainable_parameters(four_ranks: World) -> None:
    verdict = four_ranks.run(make_case(freezes=(Freeze(target=ROOT),)))
    assert verdict.status is Status.REJECTED
    assert list(verdict.notes) == ["ddp"]
    assert "is not needed when a module doesn't have any parameter" in verdict.notes["ddp"]


def test_a_refusal_leaves_the_world_as_it_was(four_ranks: World) -> None:
    four_ranks.run(make_case())
    before = four_ranks.pids
    assert four_ranks.run(REFUSED["a list group as the root"][0]).status is Status.REJECTED
    assert four_ranks.run(make_case()).status is Status.PASS
    assert four_ranks.pids == before


def test_a_module_registered_in_two_groups_is_run_and_judged(four_ranks: World) -> None:
    model = chain(a=Linear(out=5), b=Alias(target="a"))
    verdict = four_ranks.run(make_case(model, wrap=groups("a", ROOT)))
    assert verdict.status is Status.PASS
