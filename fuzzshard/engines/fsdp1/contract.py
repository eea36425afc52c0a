"""The errors that the documentation of FSDP1 announces; sources are in torch/distributed/fsdp."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from fuzzshard.analysis.dtypes import stored_dtype
from fuzzshard.analysis.schedule_state import follow
from fuzzshard.analysis.units import units
from fuzzshard.case.case import Case
from fuzzshard.case.paths import is_within_any
from fuzzshard.engines.refusals import Due, Refusal
from fuzzshard.parts.exclusion import Exclusion

FILLED_GRADIENTS = Exclusion(
    "zeros in a flat gradient, which this optimizer does not take for none",
    "_flat_param.py, _reset_is_grad_none: 'if a parameter requires gradient, then it will surely "
    "receive a gradient'",
)


def filled_gradients(case: Case, without: Mapping[int, Collection[str]]) -> Exclusion | None:
    """Return :data:`FILLED_GRADIENTS` where the optimizer sees gradients of zeros where a plain
    module has none, and cares.

    The gradient of a flat parameter is one tensor: parts that a backward does not reach are zeros.
    What reaches a frozen part of it makes zeros elsewhere, too. ``without`` are the parameters
    without a gradient after each backward, by the index of its op.
    """
    optimizers = case.optimizer.each.values()
    if not any(each.has_state or each.weight_decay for each in optimizers):
        return None
    if not any(op.updates for op in case.schedule):
        return None
    for at in follow(case):  # a backward freezes nothing
        for members in units(case).values():
            trainable = set(members) - at.frozen
            missing = trainable.intersection(without.get(at.index, ()))
            if missing and not missing == trainable == set(members):
                return FILLED_GRADIENTS
    return None


def mixed_units(case: Case, of: Callable[[str], object]) -> frozenset[str]:
    """Return the units whose parameters differ in what ``of`` says of a parameter."""
    return frozenset(
        unit for unit, fqns in units(case).items() if len({of(fqn) for fqn in fqns}) > 1
    )


def _mixes_requires_grad(case: Case, engine: str) -> Iterator[Due]:
    if _mixed_requires_grad(case):
        yield Due(-1)


def _mixes_requires_grad_below_root(case: Case, engine: str) -> Iterator[Due]:
    """A policy wraps the modules below the root, and checks them first."""
    if case.fsdp1.wrapping == "policy" and _mixed_requires_grad(case) - {""}:
        yield Due(-1)


def _mixed_requires_grad(case: Case) -> frozenset[str]:
    if case.fsdp1.use_orig_params:
        return frozenset()
    frozen = [freeze.target for freeze in case.freezes if not freeze.after_wrap]
    return mixed_units(case, lambda fqn: is_within_any(fqn, frozen))


def _mixes_dtypes(case: Case, engine: str) -> Iterator[Due]:
    if mixed_units(case, lambda fqn: stored_dtype(case, fqn, None)):
        yield Due(-1)


_FLAT = "torch/distributed/fsdp/_flat_param.py"

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "ValueError",
        "Must flatten tensors with uniform `requires_grad`",
        _mixes_requires_grad,
        "For use_orig_params=False, each FSDP instance must manage parameters that are all frozen "
        "or all non-frozen.",
        f"torch/distributed/fsdp/fully_sharded_data_parallel.py, class docstring; {_FLAT}, "
        "_validate_tensors_to_flatten",
    ),
    Refusal(
        "ValueError",
        "FSDP does not support wrapping such modules when use_orig_params=False",
        _mixes_requires_grad_below_root,
        "given `modules_to_wrap`, each module would manage parameters that are uniformly frozen "
        "or non-frozen. This uniformity requirement is strict for `use_orig_params=False` (hard "
        "error)",
        "torch/distributed/fsdp/_wrap_utils.py, _validate_frozen_params",
    ),
    Refusal(
        "ValueError",
        "Must flatten tensors with uniform dtype",
        _mixes_dtypes,
        "Must flatten tensors with uniform dtype but got ...",
        f"{_FLAT}, _validate_tensors_to_flatten",
    ),
)
