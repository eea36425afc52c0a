"""Scripts with values of ``torch.manual_seed``: they say of stock torch that nothing is wrong with
it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest
from small_cases import SMALL

from fuzzshard.analysis.arrivals import arrivals
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.schedule_state import ranks_differ
from fuzzshard.case.case import Case, EngineName
from fuzzshard.errors import UsageError
from fuzzshard.parts.ops import Backward, Forward, Step
from fuzzshard.parts.oracle import MISSING, UNEXPECTED
from fuzzshard.reproducer import script, scripts
from fuzzshard.reproducer.assertion import SEEDS
from fuzzshard.strategies import draw_cases
from fuzzshard.verdict import Finding, Status
from fuzzshard.world import World

GRADIENT = Finding(
    oracle="gradient",
    engine="fully_shard",
    observed="1.5 at [0, 2] of [4, 4]",
    expected="0.75 at [0, 2] of [4, 4]",
    op=1,
    name="linear0.weight",
    comparison="bounded",
    error=0.75,
    bound=1e-6,
)


def claims(case: Case, engine: str) -> Iterator[Finding]:
    """Findings that one could have in a case, all of them false on stock torch."""
    for index, op in enumerate(case.schedule):
        oracle = {Forward: "output", Backward: "gradient", Step: "parameter"}.get(type(op))
        fqns = sorted(arrivals(case)[index] if oracle == "gradient" else inferred(case).parameters)
        if oracle is None or not fqns:
            continue
        where = getattr(op, "target", "") or "the root"
        name = f"output 0 of {where}" if oracle == "output" else fqns[index % len(fqns)]
        yield msgspec.structs.replace(GRADIENT, oracle=oracle, engine=engine, op=index, name=name)


def drawn(
    count: int, seed: int, engines: tuple[EngineName, ...]
) -> Iterator[tuple[Case, EngineName]]:
    for engine in engines:
        for case in draw_cases(seed, count, world_size=2, engines=(engine,)):
            yield case, engine


def check_claims(
    run_script, world: World, count: int, seed: int, engines: tuple[EngineName, ...]
) -> int:
    """The number of seeded scripts that ran; each of them must pass."""
    chosen, ran = random.Random(seed), 0
    for case, engine in drawn(count, seed, engines):
        verdict = world.run(case)
        if engine in verdict.notes or verdict.status is not Status.PASS or ranks_differ(case):
            continue
        finding = chosen.choice(list(claims(case, engine)))
        try:
            text = script(case, finding=finding)
        except UsageError:
            continue
        result = run_script(text, case.mesh.size)
        assert not result.fails, f"{seed=} {finding}\n{text}\n{result.output}"
        ran += 1
    return ran


@pytest.mark.slow
def test_seeded_scripts_of_drawn_cases_pass_on_stock_torch(run_script, two_ranks: World) -> None:
    assert check_claims(run_script, two_ranks, 5, 5, ("fully_shard", "ddp")) >= 3


@pytest.mark.slow
def test_many_seeded_scripts_of_drawn_cases_pass_on_stock_torch(
    run_script, two_ranks: World
) -> None:
    engines: tuple[EngineName, ...] = ("fully_shard", "ddp", "fsdp1", "replicate")
    assert check_claims(run_script, two_ranks, 30, 6, engines) > 30


@pytest.mark.parametrize(("detail", "code"), [(MISSING, False), (UNEXPECTED, True)])
def test_a_script_says_whether_a_gradient_is_there(run_script, detail: str, *, code: bool) -> None:
    finding = msgspec.structs.replace(GRADIENT, error=None, detail=detail)
    text = script(SMALL, finding=finding)
    assert "reference" not in text
    assert run_script(text, 2).fails == code


def test_other_values_are_tried_where_the_first_do_not_show_a_finding() -> None:
    signature = "divergence/fully_shard/gradient"
    texts = list(scripts(SMALL, signature=signature, findings=[GRADIENT]))
    assert len(texts) == len(SEEDS)
    assert all(f"torch.manual_seed({seed})" in texts[seed] for seed in SEEDS)


def test_a_difference_that_rounding_of_other_values_may_explain_gives_no_script() -> None:
    close = msgspec.structs.replace(GRADIENT, error=1e-5)
    with pytest.raises(UsageError):
        script(SMALL, finding=close)


def test_the_tolerance_is_far_from_rounding_and_from_the_difference() -> None:
    text = script(SMALL, finding=GRADIENT)
    assert "rtol=0, atol=0.0001" in text


@pytest.mark.parametrize(
    ("error", "in_float64", "atol"), [(0.75, False, "1e-03"), (1e-7, True, "1e-11")]
)
def test_what_only_float64_shows_is_shown_in_float64(
    error: float, in_float64: bool, atol: str
) -> None:
    finding = msgspec.structs.replace(GRADIENT, error=error, bound=1e-14, precise="float64")
    text = script(SMALL, finding=finding)
    assert ("torch.float64" in text) is in_float64
    assert f"rtol=0, atol={float(atol):g}" in text


def test_another_finding_of_the_same_run_gives_the_script_where_the_first_one_cannot() -> None:
    hidden = msgspec.structs.replace(GRADIENT, engine="reference")
    with pytest.raises(UsageError):
        list(scripts(SMALL, signature="divergence/fully_shard/gradient", findings=[hidden]))
    loss = msgspec.structs.replace(GRADIENT, oracle="loss", op=0, name="loss")
    found = list(
        scripts(SMALL, signature="divergence/fully_shard/gradient", findings=[hidden, loss])
    )
    assert "return loss" in found[0]


def test_an_op_with_nothing_to_look_at_gives_no_script() -> None:
    nowhere = msgspec.structs.replace(GRADIENT, op=0)
    with pytest.raises(UsageError):
        script(SMALL, finding=nowhere)
