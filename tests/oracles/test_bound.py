from __future__ import annotations

import pytest
import torch
from cases import AGAIN, BACKWARD, FORWARD, STEP, ZERO, chain, float_inputs, make_case
from traces import difference, floats, gradient, trace

from fuzzshard.oracles.bound import (
    FEEDBACK_FACTOR,
    ROUNDING_FACTOR,
    TERMWISE_FACTOR,
    NoiseBound,
    distance,
    rounding_floor,
    within,
)
from fuzzshard.parts.leaves.conv1d import Conv1d
from fuzzshard.training.trace import ROUNDING, Key, Piece, Trace

CASE = make_case(mesh=4)
FIRST_FORWARD, FIRST_BACKWARD, FIRST_STEP, LATER_BACKWARD = 0, 1, 2, 5
SECOND_BACKWARD = 3
EPS = torch.finfo(torch.float32).eps
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (1.0, 1.5, 0.5),
        (INF, INF, 0.0),
        (NAN, NAN, 0.0),
        (NAN, 1.0, INF),
        (INF, 1.0, INF),
        (INF, -INF, INF),
        (0.0, -0.0, 0.0),
    ],
)
def test_the_distance_of_two_numbers(a: float, b: float, expected: float) -> None:
    assert distance(floats(a), floats(b)).item() == expected
    assert distance(floats(b), floats(a)).item() == expected


def test_nothing_may_round_differently_before_the_first_backward() -> None:
    key = Key(FIRST_FORWARD, "output", "y")
    assert rounding_floor(CASE, difference(key, floats(1.0), floats(2.0))).item() == 0.0


def test_a_convolution_that_goes_by_strides_that_mean_nothing_rounds_in_the_first_forward() -> None:
    case = make_case(chain(c=Conv1d(out=4)), inputs=float_inputs(1, seq=3))
    found = difference(Key(FIRST_FORWARD, "output", "y"), floats(1.0), floats(2.0))
    assert rounding_floor(case, found).item() == 2 * ROUNDING_FACTOR * EPS


def test_an_input_gradient_of_the_first_backward_has_no_floor() -> None:
    key = Key(FIRST_BACKWARD, "input_gradient", "x")
    assert rounding_floor(CASE, difference(key, floats(1.0), floats(2.0))).item() == 0.0


def test_a_gradient_of_the_first_step_may_round_in_each_element() -> None:
    floor = rounding_floor(CASE, difference(gradient(FIRST_BACKWARD), floats(1.0, 8.0), floats(2.0, 8.0)))
    assert floor.tolist() == [ROUNDING_FACTOR * EPS * 2, ROUNDING_FACTOR * EPS * 8]


@pytest.mark.parametrize("oracle", ["local_gradient", "unreduced_gradient"])
def test_a_gradient_that_is_not_reduced_may_round_in_the_first_backward_too(oracle: str) -> None:
    """FSDP1 adds up the terms of each of two forwards first, where plain autograd adds one after another."""
    key = Key(FIRST_BACKWARD, oracle, "a.weight")
    floor = rounding_floor(CASE, difference(key, floats(1.0, 8.0), floats(2.0, -8.0)), "fsdp1")
    assert floor.item() == ROUNDING_FACTOR * EPS * 8


def test_later_tensors_may_round_by_their_largest_element() -> None:
    for key in (gradient(LATER_BACKWARD), Key(FIRST_STEP, "parameter", "a.weight")):
        floor = rounding_floor(CASE, difference(key, floats(1.0, 8.0), floats(2.0, -8.0)))
        assert floor.item() == ROUNDING_FACTOR * EPS * 8


def test_infinite_and_missing_numbers_do_not_widen_the_floor() -> None:
    key = gradient(LATER_BACKWARD)
    floor = rounding_floor(CASE, difference(key, floats(1.0, 1.0, 1.0), floats(INF, NAN, 2.0)))
    assert floor.item() == ROUNDING_FACTOR * EPS * 2


def test_the_floor_of_an_empty_shard_is_zero() -> None:
    assert rounding_floor(CASE, difference(gradient(LATER_BACKWARD), floats(), floats())).item() == 0.0


def test_an_integer_never_rounds() -> None:
    key = Key(FIRST_STEP + 2, "buffer", "n.num_batches_tracked")
    assert rounding_floor(CASE, difference(key, torch.tensor([2]), torch.tensor([1]))).item() == 0.0


def test_the_worst_element_is_the_one_that_exceeds_its_bound_most() -> None:
    found = difference(gradient(1), floats(1.5, 9.0), floats(1.0, 8.0))
    assert within(found, floats(0.25, 2.0)) == (False, 0.5, 0.25)
    assert within(found, floats(0.5, 2.0))[0]


@pytest.mark.parametrize("value", [NAN, INF])
def test_no_bound_explains_a_number_that_is_none(value: float) -> None:
    found = difference(gradient(1), floats(value), floats(1.0))
    assert not within(found, floats(1e30))[0]
    assert not within(found, floats(NAN))[0]


def test_a_few_units_are_rounding_and_a_wrong_scale_is_not() -> None:
    bound = NoiseBound(CASE, Trace(), [])
    assert bound.excess(difference(gradient(1), floats(1.0 + 2 * EPS), floats(1.0)))[0]
    for observed in (floats(1.001), None, floats(1.0, 1.0)):
        assert not bound.excess(difference(gradient(1), observed, floats(1.0)))[0]


def noise_bound(key: Key, reference: torch.Tensor, *twins: torch.Tensor | None, case=CASE) -> NoiseBound:
    return NoiseBound(case, trace({key: reference}), [trace({key: twin}) for twin in twins])


def test_a_first_gradient_is_bounded_element_by_element() -> None:
    key = gradient(FIRST_BACKWARD)
    bound = noise_bound(key, floats(1.0, 1.0), floats(1.0, 1.25), floats(1.0, 1.5))
    limit = ROUNDING_FACTOR * EPS + TERMWISE_FACTOR * 0.5
    assert bound.excess(difference(key, floats(1.0, 2.5), floats(1.0, 1.0)))[0]
    explained, error, where = bound.excess(difference(key, floats(1.0, 4.0), floats(1.0, 1.0)))
    assert (explained, error) == (False, 3.0)
    assert where == pytest.approx(limit)
    assert not bound.excess(difference(key, floats(1.5, 1.0), floats(1.0, 1.0)))[0]


def test_an_element_whose_noise_cancels_in_a_twin_is_bounded_by_the_rounding_of_its_reduction() -> None:
    """The errors of a twin have random signs: that of a reduction and that of a boundary may be opposite."""
    key = gradient(FIRST_BACKWARD)
    rounding = {key: floats(1.0, 1.5), key._replace(oracle=ROUNDING): floats(0.5, 0.5)}
    bound = NoiseBound(CASE, trace({key: floats(1.0, 1.0)}), [trace(rounding)])
    first, second = (Piece(0, 2, 0),), (Piece(0, 2, 1),)
    for pieces in (first, second):
        assert bound.excess(difference(key, floats(2.5), floats(1.0), pieces))[0]
        assert not bound.excess(difference(key, floats(4.0), floats(1.0), pieces))[0]


def test_a_shard_is_bounded_by_its_own_piece_of_the_noise() -> None:
    key = gradient(FIRST_BACKWARD)
    bound = noise_bound(key, floats(1.0, 1.0), floats(1.0, 1.5))
    first, second = (Piece(0, 2, 0),), (Piece(0, 2, 1),)
    assert not bound.excess(difference(key, floats(2.0), floats(1.0), first))[0]
    assert bound.excess(difference(key, floats(2.0), floats(1.0), second))[0]


def test_later_tensors_are_bounded_by_what_any_element_of_a_twin_moved() -> None:
    key = Key(FIRST_STEP, "parameter", "a.weight")
    bound = noise_bound(key, floats(1.0, 1.0), floats(1.0, 1.25))
    allowed = 1.0 + FEEDBACK_FACTOR * 0.25
    assert bound.excess(difference(key, floats(allowed, 1.0), floats(1.0, 1.0)))[0]
    assert not bound.excess(difference(key, floats(allowed + 0.5, 1.0), floats(1.0, 1.0)))[0]


def test_a_gradient_that_adds_several_terms_is_bounded_by_the_largest_move() -> None:
    case = make_case(schedule=(FORWARD, BACKWARD, AGAIN, BACKWARD, STEP, ZERO), mesh=4)
    key = gradient(SECOND_BACKWARD)
    bound = noise_bound(key, floats(1.0, 1.0), floats(1.0, 1.25), case=case)
    changed = difference(key, floats(1.5, 1.0), floats(1.0, 1.0))
    assert bound.excess(changed)[0]
    assert not bound.of("fully_shard").excess(changed)[0]


def test_a_loss_may_round_by_its_largest_output_where_its_terms_cancel() -> None:
    loss, output = Key(LATER_BACKWARD - 1, "loss", "loss"), Key(LATER_BACKWARD - 1, "output", "output 0")
    reference = trace({loss: floats(0.0).sum(), output: floats(2.0, -3.0, NAN)})
    bound = NoiseBound(CASE, reference, [reference])
    rounded = difference(loss, floats(1e-7).sum(), floats(0.0).sum())
    assert bound.bound(rounded).item() == pytest.approx(ROUNDING_FACTOR * 3.0 * EPS)
    assert bound.excess(rounded)[0]
    assert not bound.excess(difference(loss, floats(1e-4).sum(), floats(0.0).sum()))[0]


def test_a_tensor_that_no_twin_moves_keeps_its_floor() -> None:
    key = Key(FIRST_FORWARD, "output", "y")
    bound = noise_bound(key, floats(1.0), floats(1.0))
    assert bound.excess(difference(key, floats(1.0 + EPS), floats(1.0))) == (False, EPS, 0.0)


def test_without_a_twins_tensor_the_floor_is_the_bound() -> None:
    key = gradient(FIRST_BACKWARD)
    for bound in (noise_bound(key, floats(1.0)), noise_bound(key, floats(1.0), None)):
        assert bound.excess(difference(key, floats(1.0 + EPS), floats(1.0)))[0]
        assert not bound.excess(difference(key, floats(1.5), floats(1.0)))[0]


def test_noise_never_explains_a_missing_tensor() -> None:
    key = gradient(FIRST_BACKWARD)
    bound = noise_bound(key, floats(1.0), floats(100.0))
    assert bound.excess(difference(key, None, floats(1.0))) == (False, INF, 0.0)
