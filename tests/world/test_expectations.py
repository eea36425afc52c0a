"""What a case expects of an engine: an error or a warning, at one op, on some ranks, and nothing
else.
"""

from __future__ import annotations

from typing import Any

import pytest
from cases import BACKWARD, FORWARD, ROOT, STEP, call, children, float_inputs, groups, make_case

from fuzzshard.case.case import Case, Freeze
from fuzzshard.case.graph import Alias, Block, Call
from fuzzshard.case.options import FSDP1, Expect
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import Forward, SetMode, SetPath, SetRequiresGrad
from fuzzshard.training.expectations import keeps_forward_order
from fuzzshard.verdict import Status
from fuzzshard.world import World

FLIP: tuple[Op, ...] = (
    SetPath(path=1, ranks="others"),
    SetRequiresGrad(target="b", value=False, ranks="others"),
    SetRequiresGrad(target="c", value=True, ranks="others"),
)
EVERYWHERE = SetPath(path=1)
ACROSS_RANKS = "^Forward order differs across ranks"
ACROSS_ITERATIONS = r"^Forward order differs from that of the first iteration on rank \d+\."
LINEAR = Linear(out=5)
MODEL = Block(
    children=children(a=LINEAR, b=LINEAR, c=LINEAR),
    nodes=(call("h", "a", "x"), Call(name="y", module="b", args=("h",), alternatives=("c",))),
    outputs=("y",),
)
EARLY = (*FLIP, FORWARD, BACKWARD)
LATE = (FORWARD, BACKWARD, *FLIP, FORWARD, BACKWARD, FORWARD, BACKWARD)


def two_paths(schedule: tuple[Op, ...], *expect: Expect, **options: Any) -> Case:
    """Ranks take path b or c, units of equal size: collectives that do not belong together do not
    hang.
    """
    options.setdefault("engines", ("fsdp1",))
    return make_case(
        MODEL,
        schedule,
        wrap=groups("b", "c", ROOT),
        freezes=(Freeze(target="c"),),
        fsdp1=options.pop("fsdp1", FSDP1(debug="detail")),
        expect=expect,
        **options,
    )


def error(op: int, pattern: str = ACROSS_RANKS, ranks: Any = "all") -> Expect:
    return Expect(kind="error", engine="fsdp1", pattern=pattern, op=op, ranks=ranks)


def warning(op: int, pattern: str = ACROSS_ITERATIONS, ranks: Any = "others") -> Expect:
    return Expect(kind="warning", engine="fsdp1", pattern=pattern, op=op, ranks=ranks)


def test_an_error_that_comes_as_expected_is_no_finding_and_leaves_the_ranks_usable(
    two_ranks: World,
) -> None:
    before = two_ranks.run(make_case()), two_ranks.pids
    verdict = two_ranks.run(two_paths(EARLY, error(3)))
    assert (verdict.status, verdict.findings) == (Status.PASS, ())
    assert verdict.notes["fsdp1"].startswith(
        "raised as expected: Forward order differs across ranks"
    )
    assert two_ranks.run(make_case()).status is Status.PASS
    assert two_ranks.pids == before[1]


def test_a_warning_that_comes_as_expected_is_no_finding(two_ranks: World) -> None:
    verdict = two_ranks.run(two_paths(LATE, warning(5)))
    assert (verdict.status, verdict.findings, verdict.notes) == (Status.PASS, (), {})


MISSED = {
    "an error that does not come": (
        two_paths((FORWARD, BACKWARD, STEP), error(1)),
        "no error",
        1,
    ),
    "an error at the last op that does not come": (
        two_paths((FORWARD, BACKWARD), error(1)),
        "no error",
        1,
    ),
    "an error at another op": (
        two_paths(EARLY, error(4)),
        "RuntimeError: Forward order differs",
        3,
    ),
    "another error": (
        two_paths(EARLY, error(3, "peanuts")),
        "RuntimeError: Forward order differs",
        3,
    ),
    "a warning that does not come": (two_paths((FORWARD, BACKWARD), warning(0)), "no warning", 0),
    "a warning at another op": (two_paths(LATE, warning(7)), "warned at op 5", 5),
    "a warning on too few ranks": (two_paths(LATE, warning(5, ranks="all")), "no warning", 5),
}


@pytest.mark.parametrize(("case", "observed", "op"), MISSED.values(), ids=MISSED.keys())
def test_what_was_expected_and_did_not_come_is_a_finding(
    two_ranks: World, case: Case, observed: str, op: int
) -> None:
    verdict = two_ranks.run(case)
    assert verdict.status is Status.DIVERGENCE
    assert verdict.signature.startswith("divergence/fsdp1/expectation")
    assert verdict.findings[0].observed.startswith(observed)
    assert verdict.findings[0].op == op


def test_evaluation_between_iterations_is_not_warned_of(two_ranks: World) -> None:
    schedule = (
        FORWARD,
        BACKWARD,
        SetMode(train=False),
        FORWARD,
        SetMode(train=True),
        FORWARD,
        BACKWARD,
    )
    assert two_ranks.run(two_paths(schedule)).status is Status.PASS


def test_a_change_of_paths_on_all_ranks_may_be_warned_of(two_ranks: World) -> None:
    verdict = two_ranks.run(two_paths((FORWARD, BACKWARD, EVERYWHERE, FORWARD, BACKWARD)))
    assert (verdict.status, verdict.findings) == (Status.PASS, ())


def test_where_ranks_differ_other_engines_are_not_judged(two_ranks: World) -> None:
    case = two_paths(EARLY, error(3), engines=("ddp", "fully_shard", "fsdp1"))
    notes = two_ranks.run(case).notes
    assert notes["ddp"] == notes["fully_shard"]
    assert (
        notes["ddp"] == "not applicable: ranks run different programs, which FSDP1 alone looks for"
    )


def test_where_ranks_differ_fsdp1_looks_at_debug_level_detail_only(two_ranks: World) -> None:
    verdict = two_ranks.run(two_paths(EARLY, fsdp1=FSDP1()))
    assert verdict.status is Status.PASS
    assert "which FSDP1 checks at debug level DETAIL only" in verdict.notes["fsdp1"]


@pytest.mark.parametrize(
    ("schedule", "keeps"),
    [
        ((FORWARD, BACKWARD, FORWARD, BACKWARD), True),
        ((FORWARD, BACKWARD, SetMode(train=False), FORWARD, FORWARD), True),
        ((FORWARD, BACKWARD, EVERYWHERE, FORWARD, BACKWARD), False),
        ((FORWARD, BACKWARD, *FLIP, FORWARD, BACKWARD), True),
        ((FORWARD, BACKWARD, FORWARD, Forward(grad=False), BACKWARD), False),
    ],
)
def test_an_iteration_keeps_the_order_of_the_first(schedule: tuple[Op, ...], keeps: bool) -> None:
    assert keeps_forward_order(two_paths(schedule), 0, ()) is keeps


def test_a_rank_that_takes_another_path_does_not_keep_the_order() -> None:
    assert not keeps_forward_order(two_paths(LATE), 1, ())


def test_a_warning_about_an_order_that_is_kept_is_a_finding(two_ranks: World) -> None:
    """torch 2.13 records a unit once in the first iteration, and counts every run in later
    ones.
    """
    model = Block(
        children=children(a=LINEAR, again=Alias(target="a")),
        nodes=(call("h", "a", "x"), call("y", "again", "h")),
        outputs=("y",),
    )
    case = make_case(
        model,
        (FORWARD, BACKWARD, FORWARD, BACKWARD),
        wrap=groups("a", ROOT),
        engines=("fsdp1",),
        fsdp1=FSDP1(debug="detail"),
        inputs=float_inputs(),
    )
    verdict = two_ranks.run(case)
    assert (verdict.status, verdict.signature) == (Status.DIVERGENCE, "divergence/fsdp1/warning")
    assert verdict.findings[0].op == 2
