"""When in a training run every op of a schedule comes."""

from __future__ import annotations

import pytest
from cases import BACKWARD, FORWARD, STEP, ZERO, make_case, moments_of_op

from fuzzshard.analysis.schedule_state import follow
from fuzzshard.analysis.validate import validate
from fuzzshard.errors import InvalidCase
from fuzzshard.parts import ops
from fuzzshard.parts.op import Op

NO_GRADS, GRADS = ops.SetGradEnabled(enabled=False), ops.SetGradEnabled(enabled=True)


def moments(*schedule: Op) -> list[set[str]]:
    """The moments of each op."""
    return [set(moments_of_op(at)) for at in follow(make_case(schedule=schedule))]


def test_a_training_run_has_five_moments() -> None:
    schedule = (ZERO, FORWARD, ZERO, BACKWARD, ZERO, FORWARD, BACKWARD, ZERO, STEP, ZERO, FORWARD)
    found = moments(*schedule)
    assert [found[i] for i in (0, 2, 4, 7, 9)] == [
        {"before_first_forward"},
        {"forward_to_backward"},
        {"between_microbatches"},
        {"backward_to_step"},
        {"after_step"},
    ]


def test_a_load_is_over_at_the_next_forward() -> None:
    saved = ops.SaveState(via="state_dict")
    found = moments(FORWARD, BACKWARD, STEP, saved, ops.LoadState(), ZERO, FORWARD, BACKWARD)
    assert found[5] == {"after_step", "after_load"}
    assert "after_load" not in found[7]


def test_modes_overlap_with_other_moments() -> None:
    found = moments(ops.SetMode(train=False), FORWARD, NO_GRADS, ZERO, GRADS, BACKWARD)
    assert found[3] == {"in_evaluation", "under_no_grad", "forward_to_backward"}


def test_a_forward_without_gradients_is_under_no_grad() -> None:
    assert moments(ops.Forward(grad=False)) == [{"before_first_forward", "under_no_grad"}]


@pytest.mark.parametrize(
    "schedule",
    [
        (NO_GRADS, FORWARD, GRADS, BACKWARD),
        (FORWARD, FORWARD, NO_GRADS, ops.Backward(), GRADS),
    ],
    ids=["a forward", "the sum of two losses"],
)
def test_what_needs_gradients_is_refused_where_they_are_disabled(schedule: tuple[Op, ...]) -> None:
    with pytest.raises(InvalidCase, match="gradients are disabled"):
        validate(make_case(schedule=schedule))


def test_a_backward_may_run_where_gradients_are_disabled() -> None:
    validate(make_case(schedule=(FORWARD, NO_GRADS, BACKWARD, GRADS, STEP)))
