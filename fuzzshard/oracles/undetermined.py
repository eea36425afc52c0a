"""Steps whose size rounding decides: Adam divides a gradient by its own magnitude.

Its update is as large for a gradient of 1e-9 as for one of 1, and goes by the sign (torch/optim/adam.py:
``step_size * exp_avg / (exp_avg_sq.sqrt() + eps)``). Where the terms of a sum cancel to less than their
rounding, two orders of adding them up may give two signs, or a sign and a zero, and both are right.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuzzshard.case.case import Case
from fuzzshard.oracles.bound import ROUNDING_FACTOR, gradient_unit
from fuzzshard.oracles.compare import Difference


def first_undetermined_step(case: Case, engine: str, found: Sequence[Difference]) -> int:
    """The first step that takes such a gradient, else the number of ops.

    Whatever is computed from then on may differ by all that a step changes.
    """
    end = len(case.schedule)
    if case.optimizer.kind == "sgd":
        return end
    steps = (_step_after(case, d.key.op) for d in found if _is_undetermined(case, engine, d))
    return min(steps, default=end)


def _step_after(case: Case, index: int) -> int:
    """The step that takes gradients as this op leaves them, else the number of ops."""
    end = len(case.schedule)
    for later in range(index + 1, end):
        op = case.schedule[later]
        if op.updates:
            return later
        if op.takes or op.clips:
            return end
    return end


def _is_undetermined(case: Case, engine: str, difference: Difference) -> bool:
    """Whether some element has another sign, and is next to nothing on both sides."""
    if difference.key.oracle != "gradient" or (both := difference.both) is None:
        return False
    observed, expected = both
    if not expected.numel():
        return False
    unit = gradient_unit(case, difference.key, expected.dtype, engine)
    nothing = ROUNDING_FACTOR * unit * expected.abs().max()
    tiny = (observed.abs() <= nothing) & (expected.abs() <= nothing)
    return bool((tiny & (observed.sign() != expected.sign())).any())
