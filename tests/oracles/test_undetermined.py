from __future__ import annotations

import pytest
import torch
from cases import BACKWARD, FORWARD, STEP, ZERO, make_case
from fuzzshard.oracles.undetermined import first_undetermined_step
from traces import difference, floats, gradient

from fuzzshard.case.case import Optimizer
from fuzzshard.case.schedule import ClipGradNorm, Op
from fuzzshard.training.trace import Key

TWICE = (FORWARD, BACKWARD, STEP, ZERO, FORWARD, BACKWARD, STEP)
TINY = 1e-8
"""Less than the rounding of a sum of terms of size 1."""


def first(
    observed: torch.Tensor | None,
    expected: torch.Tensor | None,
    key: Key | None = None,
    schedule: tuple[Op, ...] = TWICE,
    kind: str = "adam",
) -> int:
    case = make_case(schedule=schedule, optimizer=Optimizer(kind=kind))
    return first_undetermined_step(case, "fully_shard", [difference(key or gradient(1), observed, expected)])


@pytest.mark.parametrize("kind", ["adam", "adamw"])
@pytest.mark.parametrize("observed", [0.0, -TINY])
def test_a_sign_that_rounding_decides_makes_the_next_step_undetermined(observed: float, kind: str) -> None:
    assert first(floats(observed, 1.0), floats(TINY, 1.0), kind=kind) == 2
    assert first(floats(observed, 1.0), floats(TINY, 1.0), gradient(5), kind=kind) == 6


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (floats(2 * TINY, 1.0), floats(TINY, 1.0)),  # one sign
        (floats(-TINY), floats(TINY)),  # as large as all others
        (floats(-1e-3, 1.0), floats(TINY, 1.0)),  # more than rounding
        (floats(-TINY, 1.0), floats(1e-3, 1.0)),
        (None, floats(TINY)),
        (floats(), floats()),
    ],
)
def test_any_other_gradient_determines_its_step(
    observed: torch.Tensor | None, expected: torch.Tensor | None
) -> None:
    assert first(observed, expected) == len(TWICE)


def test_the_step_of_sgd_is_as_small_as_its_gradient() -> None:
    assert first(floats(0.0, 1.0), floats(TINY, 1.0), kind="sgd") == len(TWICE)


@pytest.mark.parametrize("oracle", ["parameter", "input_gradient"])
def test_a_step_takes_gradients_of_parameters_alone(oracle: str) -> None:
    assert first(floats(0.0, 1.0), floats(TINY, 1.0), Key(1, oracle, "a.weight")) == len(TWICE)


@pytest.mark.parametrize("between", [(FORWARD, BACKWARD), (ClipGradNorm(max_norm=1.0),)])
def test_a_gradient_that_changes_before_the_step_is_not_what_it_takes(between: tuple[Op, ...]) -> None:
    schedule = (FORWARD, BACKWARD, *between, STEP)
    assert first(floats(0.0, 1.0), floats(TINY, 1.0), schedule=schedule) == len(schedule)
