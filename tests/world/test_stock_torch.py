from __future__ import annotations

import pytest
from cases import BACKWARD, FORWARD
from msgspec.structs import replace
from stock_cases import NEEDS_CUDA, STOCK, Stock

from fuzzshard.analysis.features import ALL_FEATURES, features
from fuzzshard.analysis.needs import needs_cuda
from fuzzshard.case.case import Case
from fuzzshard.parts.ops import Backward
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import World

NOT_HERE = {
    *("mesh:larger", "reuse:tied_across_groups", "tensor:empty_shard"),
    *("wrap:list_group_holds_member", "wrap:list_group_leaves_root"),
    *("op:take_state_dict_in_inference", "loss:loss_parallel_weighted"),
    *(feature for feature in ALL_FEATURES if "pipelining" in feature),
    *("engine:expert_parallel", "wrap:experts_beside_others"),
    *("fsdp1:hook_fp16", "fsdp1:hook_bf16"),
}
"""More ranks than a test machine has cores for; what torch refuses (test_refusals.py); what known
findings need (corpus/findings); pipeline schedules (test_pipelining.py);
experts on several ranks (test_expert_parallel.py)."""

LACKED = "not applicable: this version of torch has no "


@pytest.mark.parametrize("stock", STOCK.values(), ids=STOCK.keys())
def test_stock_torch_passes(four_ranks: World, stock: Stock) -> None:
    verdict = four_ranks.run(stock.case)
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
    assert _other_notes(verdict) == stock.notes
    assert verdict.comparison in stock.comparisons


def _other_notes(verdict: Verdict) -> dict[str, str]:
    """What a release lacks, it cannot do wrong; the rest is the same on every release."""
    return {who: note for who, note in verdict.notes.items() if LACKED not in note}


def test_a_bug_of_checkpointing_is_the_engines_where_the_reference_checkpoints_as_well(
    four_ranks: World,
) -> None:
    twice = (FORWARD, Backward(retain_graph=True), BACKWARD)
    checkpointed = STOCK["option: a checkpointed batch norm"].case
    case = replace(checkpointed, schedule=twice, engines=("fully_shard",))
    assert four_ranks.run(case).signature == "crash/fully_shard/AttributeError in recompute_fn"
    known = ("composable_checkpoint_recomputes_once",)
    assert four_ranks.run(case, mends=known).status is Status.PASS


def test_the_hand_written_cases_have_every_feature() -> None:
    seen = {feature for stock in STOCK.values() for feature in features(stock.case)}
    on_cuda = {feature for case in NEEDS_CUDA.values() for feature in features(case)} - seen
    assert set(ALL_FEATURES) - seen - on_cuda == NOT_HERE


@pytest.mark.parametrize("case", NEEDS_CUDA.values(), ids=NEEDS_CUDA.keys())
def test_what_a_cpu_cannot_run_says_why(case: Case) -> None:
    assert "CUDA" in (needs_cuda(case) or "")
