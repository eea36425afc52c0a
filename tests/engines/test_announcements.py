"""Where documented errors are announced, and where they are not: what needs no ranks to be
seen.
"""

from __future__ import annotations

import pytest
from cases import (
    BACKWARD,
    FORWARD,
    STEP,
    chain,
    children,
    graph,
    groups,
    make_case,
    two_linears,
)
from msgspec.structs import replace

from fuzzshard.analysis.optimizer_state import lacks_states
from fuzzshard.case.case import Case, Freeze, Optimizer
from fuzzshard.case.graph import Alias, Block
from fuzzshard.engines.ddp.contract import OF_REDUCER
from fuzzshard.engines.fully_shard.lazy_roots import Flaw, flaw
from fuzzshard.engines.refusals import Due
from fuzzshard.engines.registry import REFUSALS, not_applicable
from fuzzshard.parts.exclusion import Exclusion
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import (
    Backward,
    Cast,
    CorruptState,
    Forward,
    LoadState,
    SaveState,
    SetFlag,
    SetRequiresGrad,
)

NO_SYNC = SetFlag(flag="requires_gradient_sync", value=False)
CONTAINS_ALIAS = graph(
    "h0 = a(x)",
    "h1 = block(h0)",
    block=Block(children=children(again=Alias(target="a")), nodes=(), outputs=("x",)),
    a=Linear(out=5),
)


def test_a_list_group_of_which_one_module_contains_the_other_has_one_root() -> None:
    assert flaw(make_case(CONTAINS_ALIAS, wrap=groups(("block", "a")))) is None
    apart = make_case(two_linears(), (Forward(grad=False), FORWARD), wrap=groups(("a", "b")))
    assert flaw(apart) == (Flaw.LIST_GROUP_AS_ROOT, 0)


def test_a_member_that_another_one_contains_begins_the_root_as_well() -> None:
    below = replace(CONTAINS_ALIAS.children[1], module=chain(c=Linear(out=5)))
    model = replace(CONTAINS_ALIAS, children=(CONTAINS_ALIAS.children[0], below))
    assert flaw(make_case(model, wrap=groups("a.c", ("block", "a")))) is None
    assert flaw(make_case(model, wrap=groups("a.c", "block"))) == (
        Flaw.ROOT_RUNS_LATER,
        0,
    )


def test_a_rebuilt_model_has_roots_that_have_not_run() -> None:
    whole_first = (FORWARD, BACKWARD, Forward(target="b"), BACKWARD)
    assert flaw(make_case(schedule=whole_first)) is None
    rebuilt = (
        *whole_first,
        SaveState(),
        CorruptState(how="rebuild"),
        LoadState(),
        *whole_first[2:],
        FORWARD,
    )
    assert flaw(make_case(schedule=rebuilt)) == (Flaw.ROOT_RUNS_LATER, len(rebuilt) - 1)


UNUSED = graph("h0 = a(x)", a=Linear(out=5), u=Linear(out=2))


def test_a_gradient_of_a_parameter_frozen_since_comes_where_it_is_taken_for_unused() -> None:
    freeze = SetRequiresGrad(target="a", value=False)
    case = make_case(schedule=(FORWARD, freeze, FORWARD, BACKWARD))
    _, ready_twice, _ = OF_REDUCER
    assert list(ready_twice.due(case, "ddp")) == [Due(3)]


ADAM = Optimizer(kind="adam")
TRAIN = (FORWARD, BACKWARD, STEP)
RESUME = (SaveState(), CorruptState(how="rebuild"), LoadState())


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (make_case(UNUSED, (*TRAIN, *RESUME), optimizer=ADAM), (5,)),
        (make_case(UNUSED, (*TRAIN, *RESUME)), ()),
        (make_case(UNUSED, (*RESUME, *TRAIN), optimizer=ADAM), ()),
        (make_case(UNUSED, (*TRAIN, *RESUME), optimizer=ADAM, freezes=(Freeze(target="u"),)), ()),
        (
            make_case(UNUSED, (*TRAIN, *RESUME), optimizer=Optimizer(kind="adam", exclude=("u",))),
            (),
        ),
    ],
    ids=["after a step", "without states", "before a step", "frozen", "excluded"],
)
def test_a_checkpoint_lacks_the_states_that_its_optimizer_did_not_have(
    case: Case, expected: tuple[int, ...]
) -> None:
    assert lacks_states(case, "fully_shard") == expected


def test_every_refusal_says_where_it_is_documented() -> None:
    for refusal in REFUSALS:
        assert refusal.quote
        assert "torch/" in refusal.source


EXCLUDED = {
    "ddp": (FORWARD, BACKWARD, Cast(dtype="float64"), FORWARD),
    "fsdp1": (Forward(target="a"), BACKWARD),
}


@pytest.mark.parametrize("engine", EXCLUDED)
def test_an_exclusion_quotes_its_source(engine: str) -> None:
    excluded = not_applicable(make_case(schedule=EXCLUDED[engine]), engine)
    assert isinstance(excluded, Exclusion)
    assert "class docstring: '" in excluded.source


ONE_BY_ONE = (FORWARD, FORWARD, Backward(which="oldest"), Backward(which="newest"))
SYNC = SetFlag(flag="requires_gradient_sync", value=True)


def test_ddp_covers_what_synchronises_nothing() -> None:
    """Backwards one by one within ``no_sync()``, and a part of the model under
    ``torch.no_grad()``.
    """
    evaluates_a_part = (Forward(target="b", grad=False), *TRAIN)
    assert not_applicable(make_case(schedule=evaluates_a_part), "ddp") is None
    for schedule in (ONE_BY_ONE, (Forward(target="b"), BACKWARD)):
        assert not_applicable(make_case(schedule=schedule), "ddp") is not None


def test_what_dynamo_quotes_is_the_same_refusal() -> None:
    refusal = next(r for r in REFUSALS if "unevenly sharded" in r.pattern)
    told = "Cannot unflatten unevenly sharded tensor: output dimension 0 (size 5) is not evenly"
    quoted = type("TorchRuntimeError", (Exception,), {})(f"Dynamo failed: RuntimeError('{told}')")
    assert refusal.says(RuntimeError(told))
    assert refusal.says(quoted)
    assert not refusal.says(ValueError(told))
