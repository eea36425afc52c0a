"""A verdict says of each engine how it was compared: on real ranks."""

from __future__ import annotations

from cases import BACKWARD, FORWARD, ROOT, STEP, groups, make_case
from msgspec.structs import replace

from fuzzshard.case.case import Freeze, Optimizer
from fuzzshard.case.options import Precision
from fuzzshard.parts.ops import Forward, SaveState, SetFlag
from fuzzshard.verdict import Compared, Status
from fuzzshard.world import World

CASE = make_case()


def test_equal_bits_are_compared_bit_for_bit_on_all_ranks(two_ranks: World) -> None:
    verdict = two_ranks.run(CASE)
    everything = {name: verdict.compared[name] for name in CASE.engines}
    assert verdict.status is Status.PASS
    assert {how.comparison for how in everything.values()} == {"bitwise"}
    assert all(how.tensors > 50 and not how.skipped for how in everything.values())
    losses = two_ranks.run(replace(CASE, observe="losses"))
    assert losses.compared["ddp"] == Compared(comparison="bitwise", tensors=2 * 2)  # losses, ranks


def test_an_engine_that_differs_has_a_comparison_of_its_own(four_ranks: World) -> None:
    case = make_case(mesh=4, engines=("ddp", "fully_shard"))
    half = make_case(
        mesh=4,
        wrap=tuple(
            replace(group, precision=Precision(reduce="bfloat16"))
            for group in groups("a", "b", ROOT)
        ),
    )
    comparisons = {name: how.comparison for name, how in four_ranks.run(case).compared.items()}
    assert comparisons == {"ddp": "bitwise", "fully_shard": "bounded"}
    verdict = four_ranks.run(half)
    assert verdict.status is Status.PASS
    assert verdict.compared["fully_shard"].comparison == "precision"


def test_gradients_that_ddp_averages_again_have_equal_bits(two_ranks: World) -> None:
    twice = make_case(schedule=(FORWARD, BACKWARD, Forward(batch=1), BACKWARD, STEP))
    compared = two_ranks.run(twice).compared
    assert {name: how.comparison for name, how in compared.items()} == dict.fromkeys(
        twice.engines, "bitwise"
    )


def test_gradients_that_fully_shard_averages_after_those_that_waited_have_equal_bits(
    two_ranks: World,
) -> None:
    """Of two forwards, the first post-backward finds only what waited."""
    no_sync, sync = (
        SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True)
    )
    later = (sync, Forward(batch=1), Forward(batch=2), BACKWARD, STEP)
    case = make_case(engines=("fully_shard",), schedule=(no_sync, FORWARD, BACKWARD, *later))
    assert two_ranks.run(case).compared["fully_shard"].comparison == "bitwise"


def test_an_engine_that_refuses_is_not_compared(two_ranks: World) -> None:
    case = make_case(freezes=(Freeze(target=ROOT),), schedule=(FORWARD, BACKWARD, STEP))
    verdict = two_ranks.run(case)
    assert verdict.notes["ddp"].startswith("refused: ")
    assert "ddp" not in verdict.compared
    assert "fully_shard" in verdict.compared


def test_what_is_documented_is_compared_as_well(two_ranks: World) -> None:
    """A save makes the state of momentum, which plain training has none of."""
    case = make_case(schedule=(SaveState(), FORWARD), optimizer=Optimizer(momentum=0.5))
    verdict = two_ranks.run(case)
    assert verdict.status is Status.PASS
    assert {(how.comparison, how.skipped) for how in verdict.compared.values()} == {("bitwise", 0)}
