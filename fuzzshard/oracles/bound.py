"""How far rounding alone may move each tensor: from noise twins of the reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Self

import torch

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import policies, reduction_dtype
from fuzzshard.case.facts import facts
from fuzzshard.case.schedule_state import engines_train_more_from, first
from fuzzshard.case.strides import strides_are_free
from fuzzshard.case.units import fsdp1_multiplies_otherwise, fsdp1_normalizes_otherwise
from fuzzshard.oracles.association import reorders_from
from fuzzshard.oracles.compare import Difference
from fuzzshard.oracles.factor import allowed_deviation
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.training.trace import ROUNDING, Key, Trace, cut

TERMWISE_FACTOR = 4.0
"""Slack of the termwise bound: two engines may each be off by it, with opposite signs."""

FEEDBACK_FACTOR = 16.0
"""Slack of the scale a noise twin measures: two samples of a maximum underestimate it."""

PARAMETER_GRADIENTS = ("gradient", "local_gradient", "unreduced_gradient")
"""The oracles that compare gradients of parameters: sums, which engines may add up in other orders."""

GRADIENTS = (*PARAMETER_GRADIENTS, "input_gradient")
"""The oracles that compare gradients."""

ROUNDING_FACTOR = 4.0
"""Rounding units by which a value may differ once a reduction has been rounded differently."""


def rounding_floor(
    case: Case, difference: Difference, engine: str = "", *, largest_term: float = 0.0
) -> torch.Tensor:
    """The bound that needs no twin: a few rounding units, none before the first backward of a plain forward.

    For a gradient of the first step, of each element, where ``engine`` reorders only the reduction; later,
    when rounding has been through the optimizer and the model, of the largest element of the tensor, or of
    the ``largest_term`` of its sums.
    """
    expected = difference.expected
    assert expected is not None
    key = difference.key
    if key.oracle in PARAMETER_GRADIENTS:
        unit = gradient_unit(case, key, expected.dtype, engine)
    elif not expected.is_floating_point() or _is_exact_yet(case, key, expected.device.type):
        unit = 0.0
    else:
        unit = torch.finfo(expected.dtype).eps
    size = _magnitudes(expected)
    if not _is_termwise(case, key, engine):
        size = (size.max() if size.numel() else size.sum()).clamp(min=largest_term)
    return ROUNDING_FACTOR * unit * size


def _magnitudes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double().abs().nan_to_num(nan=0.0, posinf=0.0)


def _is_exact_yet(case: Case, key: Key, device: str) -> bool:
    """Whether no engine has added anything in another order yet; parameters stay as they are until a step."""
    fused = case.compile == "inductor"
    rounds = fused or bool(case.tensor_parallel) or fsdp1_multiplies_otherwise(case) or strides_are_free(case)
    rounds = rounds or fsdp1_normalizes_otherwise(case, device) or key.op >= engines_train_more_from(case)
    plain = not rounds or key.oracle in ("parameter", "registered_parameter")
    return plain and key.op <= first(case, lambda op: op.takes is not None)


def _is_termwise(case: Case, key: Key, engine: str) -> bool:
    """Whether only the reduction over the mesh may round each element differently."""
    ordered = key.op < min(first(case, lambda op: op.updates), reorders_from(case, engine))
    return key.oracle == "gradient" and ordered


def gradient_unit(case: Case, key: Key, dtype: torch.dtype, engine: str) -> float:
    """A rounding unit of the dtype that a gradient is reduced in, or was added up in before that."""
    owner = facts(case).owners.get(key.name)
    policy = None if owner is None else policies(case)[owner]
    if policy is None:
        return torch.finfo(dtype).eps
    used: list[Dtype | None] = [reduction_dtype(case, facts(case), key.name, None)]
    if key.op >= reorders_from(case, engine):
        used.append(policy.param)
    return max(torch.finfo(dtype).eps, *(torch.finfo(getattr(torch, d)).eps for d in used if d), 0.0)


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Elementwise |a - b| in fp64: 0 between equal infinities, inf between NaN and a number."""
    error = (a.double() - b.double()).abs()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, error.nan_to_num(nan=float("inf"), posinf=float("inf")))


def within(difference: Difference, bound: torch.Tensor) -> tuple[bool, float, float]:
    """Whether the error is within ``bound`` everywhere, and the error and bound where it exceeds most."""
    observed, expected = difference.observed, difference.expected
    assert observed is not None
    assert expected is not None
    error = distance(observed, expected).flatten()
    limit = bound.nan_to_num(nan=0.0, posinf=float("inf")).expand_as(observed).flatten()
    worst = int((error - limit).nan_to_num(nan=0.0).argmax())
    return bool(error[worst] <= limit[worst]), float(error[worst]), float(limit[worst])


@dataclasses.dataclass(frozen=True)
class NoiseBound:
    """Bounds from the reference and its noise twins.

    Gradients before the first step are bounded element by element where only the reduction adds in
    another order, by the a-priori bound n u mean|g_i|. What a twin moved there may be less: its errors of
    reductions and of module inputs have random signs, and cancel in some elements. Later, rounding has
    fed back through parameters and activations, and a tensor may move by the largest amount that any
    element of a twin moved. What no twin moves (the forward of the first step, say) must be bitwise
    equal.
    """

    case: Case
    reference: Trace
    twins: Sequence[Trace]
    engine: str = ""

    def of(self, engine: str) -> Self:
        """The bound for one engine: some add in an order that others do not."""
        return dataclasses.replace(self, engine=engine)

    def with_twin(self, twin: Trace) -> Self:
        """This bound, widened by what another twin shows."""
        return dataclasses.replace(self, twins=[*self.twins, twin])

    def excess(self, difference: Difference) -> tuple[bool, float, float]:
        """Whether noise explains the difference, and the error and bound where it exceeds most."""
        if not difference.comparable:
            return False, float("inf"), 0.0
        bound = self.bound(difference)
        if (allowed := self.wrong_factor(difference)) is not None:
            assert difference.expected is not None
            bound = bound.minimum(allowed * difference.expected.double().abs())
        return within(difference, bound)

    def wrong_factor(self, difference: Difference) -> float | None:
        """How far from one a factor may be, where a gradient has another one throughout."""
        if difference.key.oracle not in GRADIENTS or (both := difference.both) is None or not self.twins:
            return None
        observed, expected = both
        runs = (run.tensors[difference.key].tensor for run in self.rounded_otherwise)
        others = (cut(tensor, difference.pieces) for tensor in runs if tensor is not None)
        return allowed_deviation(observed, expected, others)

    @property
    def rounded_otherwise(self) -> Sequence[Trace]:
        """Runs that differ from the reference by rounding alone."""
        return self.twins

    def is_termwise(self, difference: Difference) -> bool:
        """Whether only the reduction over the mesh may round each element differently."""
        return _is_termwise(self.case, difference.key, self.engine)

    def _largest_term(self, key: Key) -> float:
        """The scale of what a loss sums up: outputs, whose roundings stay where they cancel."""
        if key.oracle != "loss":
            return 0.0
        outputs = (
            t.tensor for k, t in self.reference.tensors.items() if (k.op, k.oracle) == (key.op, "output")
        )
        sizes = [_magnitudes(t).max().item() for t in outputs if t is not None and t.numel()]
        return max(sizes, default=0.0)

    def bound(self, difference: Difference) -> torch.Tensor:
        """What each element may differ by."""
        key = difference.key
        floor = rounding_floor(self.case, difference, self.engine, largest_term=self._largest_term(key))
        moved = []
        for twin in self.twins:
            truth, other = self.reference.tensors[key].tensor, twin.tensors[key].tensor
            assert truth is not None
            if other is None:
                return floor
            moved.append(distance(other, truth))
            rounding = twin.tensors.get(key._replace(oracle=ROUNDING))
            if rounding is not None and rounding.tensor is not None and self.is_termwise(difference):
                moved.append(rounding.tensor.double())
        if not moved or not moved[0].numel():
            return floor
        largest = torch.stack(moved).amax(0)
        if self.is_termwise(difference):
            return floor + TERMWISE_FACTOR * cut(largest, difference.pieces)
        return floor + FEEDBACK_FACTOR * largest.max()
