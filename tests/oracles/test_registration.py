"""What fully_shard documents about what is registered when; real ranks agree in tests/world."""

from __future__ import annotations

from typing import Any

import pytest
from cases import AGAIN, BACKWARD, FORWARD, ROOT, STEP, TWO_STEPS, chain, graph, groups, make_case

from fuzzshard.case.case import Case, Freeze, Mesh, WrapGroup
from fuzzshard.case.graph import Call
from fuzzshard.oracles.registration import RegistrationModel, registration_findings
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import (
    Backward,
    Cast,
    Forward,
    Reshard,
    SetFlag,
    SetPath,
    SetRequiresGrad,
    TakeStateDict,
    Unshard,
)
from fuzzshard.parts.oracles.registration import Registered
from fuzzshard.training.trace import Key, Registration, Trace
from fuzzshard.verdict import Finding

FORWARD_AT, BACKWARD_AT = 0, 1


def predictions(case: Case, fqn: str = "a.weight", skipped: tuple[int, ...] = ()) -> list[str]:
    """What is registered before the first op and after each: sharded, whole, sharded over k, or
    unknown.
    """
    model = RegistrationModel(case)
    names = [name(model.expected(fqn), case)]
    for index in range(len(case.schedule)):
        model.advance(skipped=index in skipped)
        names.append(name(model.expected(fqn), case))
    return names


def name(registration: Registration | None, case: Case) -> str:
    if registration is None:
        return "unknown"
    if registration.kind == "Tensor":
        return "whole"
    size = 1
    for axis in registration.mesh:
        size *= axis
    assert size == case.mesh.size
    whole_mesh = case.mesh.replicate or 1, case.mesh.shard
    return (
        "sharded"
        if (1, *registration.mesh)[-2:] == whole_mesh
        else f"sharded over {registration.mesh[-1]}"
    )


def resharding(reshard: bool | int | None, *, mesh: int = 2) -> Case:
    return make_case(mesh=mesh, wrap=groups("a", ROOT, reshard=reshard))


ONCE: tuple[Op, ...] = (FORWARD, BACKWARD, STEP)


@pytest.mark.parametrize(
    ("reshard", "group", "root"),
    [
        (None, "sharded", "whole"),
        (True, "sharded", "sharded"),
        (False, "whole", "whole"),
        (1, "whole", "whole"),
        (2, "sharded over 2", "sharded over 2"),
        (4, "sharded", "sharded"),
    ],
)
def test_after_forward_a_group_is_as_reshard_after_forward_says(
    reshard: bool | int | None, group: str, root: str
) -> None:
    case = make_case(schedule=ONCE, mesh=4, wrap=groups("a", ROOT, reshard=reshard))
    assert predictions(case, "a.weight") == ["sharded", group, "sharded", "sharded"]
    assert predictions(case, "b.weight") == ["sharded", root, "sharded", "sharded"]


def test_an_int_reshards_on_a_mesh_of_copies_and_shards() -> None:
    model = RegistrationModel(resharding(2, mesh=4))
    model.advance(skipped=False)
    expected = model.expected("a.weight")
    assert expected is not None
    assert (expected.placements, expected.mesh) == (("R", "S(0)"), (2, 2))


def test_parameters_on_an_hsdp_mesh_are_replicated_and_sharded() -> None:
    expected = RegistrationModel(make_case(mesh=Mesh(replicate=2, shard=2))).expected("a.weight")
    assert expected == Registration("DTensor", ("R", "S(0)"), (2, 2), (5, 5), "float32", True)


def test_a_parameter_in_no_group_stays_a_plain_tensor() -> None:
    case = make_case(wrap=groups("a"))
    assert set(predictions(case, "b.weight")) == {"whole"}


def test_without_a_wrapped_root_every_outermost_group_is_its_own_root() -> None:
    case = make_case(schedule=ONCE, wrap=groups("a", "b"))
    assert predictions(case, "a.weight")[1] == predictions(case, "b.weight")[1] == "whole"


def test_a_backward_through_the_unwrapped_root_promises_no_resharding() -> None:
    case = make_case(schedule=ONCE, wrap=groups("a", "b"))
    assert predictions(case, "a.weight") == ["sharded", "whole", "unknown", "unknown"]


def test_a_forward_of_a_part_leaves_the_other_groups_sharded() -> None:
    schedule = (*ONCE, Forward(target="b"), BACKWARD)
    case = make_case(schedule=schedule, wrap=groups("a", "b", ROOT, reshard=False))
    assert predictions(case, "a.weight")[4:] == ["sharded", "sharded"]
    assert predictions(case, "b.weight")[4] == "whole"


def test_a_list_group_of_which_a_part_ran_is_unknown() -> None:
    schedule = (*ONCE, Forward(target="b"))
    case = make_case(schedule=schedule, wrap=groups(("a", "b"), ROOT))
    assert predictions(case, "a.weight")[-1] == "unknown"


def test_a_forward_after_the_backward_registers_whole_parameters() -> None:
    extra = Forward(batch=2, grad=False)
    case = make_case(schedule=(FORWARD, BACKWARD, extra), wrap=groups(ROOT))
    assert predictions(case) == ["sharded", "whole", "sharded", "whole"]


def test_a_skipped_backward_reshards_nothing() -> None:
    case = make_case(schedule=ONCE, wrap=groups(ROOT), freezes=(Freeze(target=ROOT),))
    assert predictions(case, skipped=(BACKWARD_AT,)) == ["sharded", "whole", "whole", "whole"]


def test_with_reshard_after_backward_off_nothing_is_promised_after_backward() -> None:
    off, on = (SetFlag(flag="reshard_after_backward", value=value) for value in (False, True))
    case = make_case(
        schedule=(off, FORWARD, BACKWARD, on, AGAIN, BACKWARD, STEP), wrap=groups(ROOT)
    )
    assert predictions(case)[3] == "unknown"
    assert predictions(case)[6:] == ["sharded", "sharded"]


def test_a_pending_forward_keeps_its_group_as_it_was() -> None:
    case = make_case(schedule=(FORWARD, AGAIN, Backward(which="oldest"), Backward(), STEP))
    assert predictions(case)[-1] == "sharded"


def test_requires_grad_follows_the_freeze_plan_and_the_schedule() -> None:
    thaw, freeze = (SetRequiresGrad(target="a", value=value) for value in (True, False))
    case = make_case(schedule=(*ONCE, thaw, *ONCE, freeze), freezes=(Freeze(target="a.weight"),))
    model = RegistrationModel(case)
    seen = []
    for _ in case.schedule:
        model.advance(skipped=False)
        expected = model.expected("a.weight")
        assert expected is not None
        seen.append(expected.requires_grad)
    assert seen == [False] * 3 + [True] * 4 + [False]


def recorded(case: Case) -> Trace:
    """The trace of a run in which everything was registered as documented."""
    model, trace = RegistrationModel(case), Trace(engine="fully_shard")
    for index in range(-1, len(case.schedule)):
        if index >= 0:
            model.advance(skipped=False)
        for fqn in model.inferred.parameters:
            expected = model.expected(fqn)
            assert expected is not None
            trace.registrations[Key(index, "registration", fqn)] = expected
    return trace


def test_a_run_as_documented_has_no_findings() -> None:
    case = make_case(schedule=TWO_STEPS)
    assert registration_findings(case, recorded(case), rank=0) == []


def test_another_registration_is_a_finding_with_both_sides() -> None:
    case = make_case(schedule=ONCE)
    trace = recorded(case)
    trace.registrations[Key(FORWARD_AT, "registration", "a.bias")] = Registration(
        "Tensor", (), (), (5,), "float32", False
    )
    (finding,) = registration_findings(case, trace, rank=1)
    assert (finding.oracle, finding.engine) == ("registration", "fully_shard")
    assert (finding.op, finding.name, finding.rank) == (FORWARD_AT, "a.bias", 1)
    assert finding.observed == "Tensor[5] float32, frozen"
    assert finding.expected == "DTensor[5] float32 S(0) on mesh [2]"


def test_what_is_not_promised_is_not_judged() -> None:
    case = make_case(schedule=ONCE, wrap=(WrapGroup(modules=("a",)), WrapGroup(modules=("b",))))
    trace = Trace()
    trace.registrations[Key(BACKWARD_AT, "registration", "a.bias")] = Registration(
        "Tensor", (), (), (5,), "float32", True
    )
    assert registration_findings(case, trace, rank=0) == []


def test_nested_groups_belong_to_the_root_that_ran_first() -> None:
    deep = chain(inner=chain(a=Linear(out=4), b=Linear(out=4)), c=Linear(out=3))
    case = make_case(deep, ONCE, wrap=groups("inner.a", "inner", ROOT))
    after_forward = {
        fqn: predictions(case, fqn)[1] for fqn in ("inner.a.bias", "inner.b.bias", "c.bias")
    }
    assert after_forward == {
        "inner.a.bias": "sharded",
        "inner.b.bias": "sharded",
        "c.bias": "whole",
    }


def run_time(*ops: Op, **options: Any) -> list[str]:
    return predictions(make_case(schedule=ops, **{"wrap": groups("a", ROOT), **options}))


def test_unshard_registers_whole_parameters_until_reshard() -> None:
    assert run_time(Unshard(), Reshard(), FORWARD) == ["sharded", "whole", "sharded", "sharded"]


def test_unshard_without_waiting_registers_nothing_before_the_forward() -> None:
    assert run_time(Unshard(async_op=True), FORWARD, wrap=groups(ROOT)) == [
        "sharded",
        "sharded",
        "whole",
    ]


def test_unshard_and_reshard_concern_the_modules_they_name() -> None:
    only_root = Unshard(recurse=False)
    case = make_case(
        schedule=(only_root, Unshard(target="a"), Reshard(target="b")), wrap=groups("a", ROOT)
    )
    assert predictions(case, "a.bias") == ["sharded", "sharded", "whole", "whole"]
    assert predictions(case, "b.bias") == ["sharded", "whole", "whole", "whole"]


def test_reshard_after_forward_can_be_set_at_run_time() -> None:
    keep, free = (SetFlag(flag="reshard_after_forward", value=value) for value in (False, True))
    assert run_time(keep, FORWARD, free, FORWARD)[1:] == ["sharded", "whole", "whole", "sharded"]
    assert predictions(make_case(schedule=(free, FORWARD), wrap=groups(ROOT)))[-1] == "sharded"


def test_a_cast_and_a_state_dict_reshard() -> None:
    for op in (Cast(dtype="float64"), TakeStateDict()):
        assert run_time(FORWARD, op, wrap=groups(ROOT)) == ["sharded", "whole", "sharded"]


def test_parameters_are_sharded_along_the_dimension_that_the_group_says() -> None:
    placements = {}
    for shard_dim in ("first", "last", "largest"):
        case = make_case(wrap=(WrapGroup(modules=(ROOT,), shard_dim=shard_dim),))
        expected = [RegistrationModel(case).expected(fqn) for fqn in ("b.weight", "b.bias")]
        placements[shard_dim] = [e.placements for e in expected if e is not None]
    assert placements == {
        "first": [("S(0)",), ("S(0)",)],
        "last": [("S(1)",), ("S(0)",)],
        "largest": [("S(1)",), ("S(0)",)],
    }


def test_an_int_reshard_of_another_dimension_promises_nothing() -> None:
    wrap = (WrapGroup(modules=(ROOT,), shard_dim="last", reshard_after_forward=2),)
    assert run_time(FORWARD, wrap=wrap, mesh=4) == ["sharded", "unknown"]


def test_only_the_alternative_that_is_called_is_unsharded() -> None:
    node = Call(name="h", module="a", args=("x",), alternatives=("c",))
    model = graph(node, a=Linear(out=4), c=Linear(out=4))
    schedule = (SetPath(path=1), FORWARD)
    case = make_case(model, schedule, wrap=groups("a", "c", ROOT, reshard=False))
    assert predictions(case, "a.bias")[-1] == "sharded"
    assert predictions(case, "c.bias")[-1] == "whole"


@pytest.mark.parametrize(
    ("observed", "expected", "words"),
    [
        (
            "Parameter[2] float32",
            "DTensor[2] float32 S(0) on mesh [2]",
            "is a Parameter, not a DT",
        ),
        ("DTensor[2] float32 R", "DTensor[2] float32 R, frozen", "trainable"),
        ("DTensor[2] float32 R on mesh [2]", "DTensor[2] float32 S(0) on mesh [2]", "layout"),
    ],
)
def test_its_headline_says_what_is_wrong(observed: str, expected: str, words: str):
    finding = Finding(
        oracle="registration", engine="fully_shard", observed=observed, expected=expected
    )
    assert words in Registered().headline(finding, ends="")
