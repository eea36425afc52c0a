"""When post-backwards must run; that those of stock torch do is in tests/world."""

from __future__ import annotations

import pytest
from cases import BACKWARD, FORWARD, ROOT, TWO_STEPS, call, chain, children, groups, make_case

from fuzzshard.analysis.passed_roots import done_within
from fuzzshard.case.case import Case, Checkpoint, Freeze, Inputs, TensorSpec
from fuzzshard.case.graph import Block
from fuzzshard.oracles.hooks import fsdp1_hook_findings, fully_shard_hook_findings, resharded_units
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import Forward, SetRequiresGrad
from fuzzshard.training.hooks import Hook
from fuzzshard.training.trace import Trace
from fuzzshard.verdict import Status
from fuzzshard.world import World

ONCE: tuple[Op, ...] = (FORWARD, BACKWARD)
FROM_DATA = Inputs(batch=2, tensors=(TensorSpec(size=5),))


def in_backward(case: Case) -> set[str]:
    """The groups that must be done within the backward, by their first modules."""
    return {case.wrap[index].modules[0] for index in done_within(case, 0)[1]}


def test_a_group_whose_inputs_require_gradients_is_done_in_backward() -> None:
    assert in_backward(make_case(schedule=ONCE)) == {"a", "b"}


def test_the_first_group_has_no_gradient_to_wait_for_where_data_has_none() -> None:
    assert in_backward(make_case(schedule=ONCE, inputs=FROM_DATA)) == {"b"}


def test_a_frozen_group_is_done_in_backward_as_well() -> None:
    case = make_case(schedule=ONCE, freezes=(Freeze(target="b"),))
    assert in_backward(case) == {"a", "b"}


def test_after_frozen_layers_only_a_group_has_no_inputs_to_wait_for() -> None:
    case = make_case(schedule=ONCE, inputs=FROM_DATA, freezes=(Freeze(target="a"),))
    assert in_backward(case) == set()


def test_nothing_is_said_of_a_group_of_several_modules() -> None:
    assert in_backward(make_case(schedule=ONCE, wrap=groups(("a", "b")))) == set()


def test_a_late_post_backward_is_a_finding() -> None:
    case = make_case(schedule=ONCE, wrap=groups(ROOT))
    timely, late = (Trace(hooks=[Hook(1, 0, deferred=deferred)]) for deferred in (False, True))
    assert fully_shard_hook_findings(case, timely, 0) == []
    (finding,) = fully_shard_hook_findings(case, late, 0)
    assert (finding.oracle, finding.op, finding.name) == ("hooks", 1, "the root")
    assert (finding.observed, finding.expected) == ("0 in backward", "1 in backward")


def test_the_end_of_a_forward_is_no_post_backward() -> None:
    case = make_case(schedule=ONCE, wrap=groups(ROOT))
    assert fully_shard_hook_findings(case, Trace(hooks=[Hook(1, 0, "post_forward")]), 0)


LAYERS = {f"l{i}": Linear(out=5) for i in range(6)}
SEQUENCE = chain(
    **{k: v for i in range(6) for k, v in ((f"l{i}", LAYERS[f"l{i}"]), (f"r{i}", Activation()))}
)


def fine_tuned(*, input_grad: bool, unfreeze: bool) -> Case:
    """Upstream's ``test_backward_reshard_hooks``: every other layer is frozen, at first."""
    frozen = ("l0", "l2", "l4")
    thaw = tuple(SetRequiresGrad(target=t, value=True) for t in frozen) if unfreeze else ()
    return make_case(
        SEQUENCE,
        (FORWARD, BACKWARD, Forward(batch=1, grad=False), *thaw, Forward(batch=2), BACKWARD),
        wrap=groups(*LAYERS),
        inputs=Inputs(batch=8, tensors=(TensorSpec(size=5, requires_grad=input_grad),)),
        freezes=tuple(Freeze(target=t) for t in frozen),
        engines=("fsdp1",),
    )


@pytest.mark.parametrize("input_grad", [False, True])
@pytest.mark.parametrize("unfreeze", [False, True])
def test_fsdp1_reshards_as_many_units_as_upstream_counts(
    two_ranks: World, input_grad: bool, unfreeze: bool
) -> None:
    case = fine_tuned(input_grad=input_grad, unfreeze=unfreeze)
    first, last = 5 + input_grad, 6 if input_grad or unfreeze else 5
    assert [count for _, count in resharded_units(case, 0)] == [first, last]
    verdict = two_ranks.run(case)
    assert verdict.status is Status.PASS, verdict


def test_another_number_of_units_is_a_finding() -> None:
    case = fine_tuned(input_grad=True, unfreeze=False)
    trace = Trace(hooks=[Hook(1, -1)] * 5 + [Hook(4, -1)] * 6)
    findings = fsdp1_hook_findings(case, trace, 0)
    assert [(f.op, f.observed) for f in findings] == [(1, "5 units in backward")]


def test_a_unit_that_reshards_at_the_end_of_a_backward_does_not_within_it() -> None:
    case = make_case(schedule=ONCE, wrap=groups(ROOT), engines=("fsdp1",))
    timely, late = (Trace(hooks=[Hook(1, -1, deferred=deferred)]) for deferred in (False, True))
    assert fsdp1_hook_findings(case, timely, 0) == []
    assert [f.observed for f in fsdp1_hook_findings(case, late, 0)] == ["0 units in backward"]


def test_nothing_is_predicted_for_fsdp1_where_units_are_recomputed() -> None:
    case = make_case(schedule=TWO_STEPS, checkpoints=(Checkpoint(module="a"),), engines=("fsdp1",))
    assert {count for _, count in resharded_units(case, 0)} == {None}


def test_nothing_is_predicted_for_fsdp1_where_a_unit_takes_a_dataclass(
    two_ranks: World,
) -> None:
    model = Block(
        children=children(a=Linear(out=5)),
        nodes=(call("h", "a", "x"),),
        outputs=("h",),
        passing="dataclass",
    )
    case = make_case(model, ONCE, wrap=(), freezes=(Freeze(target=""),), engines=("fsdp1",))
    assert [count for _, count in resharded_units(case, 0)] == [None]
    assert two_ranks.run(case).status is Status.PASS
