"""What is right passes with all mends on."""

from __future__ import annotations

from cases import AGAIN, BACKWARD, FORWARD, ROOT, STEP, ZERO, groups, make_case

from fuzzshard.case.case import Mesh
from fuzzshard.mending.mend import mends_for
from fuzzshard.parts.ops import SetFlag, SetRequiresGrad
from fuzzshard.verdict import Status
from fuzzshard.world import World


def test_a_list_group_reduces_once_in_a_backward_without_all_reduce(two_ranks: World) -> None:
    off, on = (SetFlag(flag="requires_all_reduce", value=value) for value in (False, True))
    case = make_case(
        schedule=(off, FORWARD, BACKWARD, on, AGAIN, BACKWARD, STEP),
        mesh=Mesh(replicate=1, shard=2),
        wrap=groups(("a", "b"), ROOT),
    )
    for mends in ((), mends_for()):
        verdict = two_ranks.run(case, mends=mends)
        assert verdict.status is Status.PASS, verdict.findings


def test_a_compiled_model_trains_a_parameter_that_is_thawed(two_ranks: World) -> None:
    freeze, thaw = (SetRequiresGrad(target="a", value=value) for value in (False, True))
    case = make_case(
        schedule=(freeze, FORWARD, BACKWARD, STEP, ZERO, thaw, AGAIN, BACKWARD, STEP),
        wrap=groups("b", ROOT),
        ignored=("a",),
        compile="aot_eager",
    )
    verdict = two_ranks.run(case, mends=mends_for())
    assert verdict.status is Status.PASS, verdict.findings
