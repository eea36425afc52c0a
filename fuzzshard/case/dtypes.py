"""Dtypes: what mixed precision asks for, and what each parameter is stored in and computed
with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts
from fuzzshard.case.groups import root_groups
from fuzzshard.case.options import Precision
from fuzzshard.case.paths import is_within
from fuzzshard.contracts import REDUCTIONS_FOLLOW_GRAD_DTYPE
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.engines import specs


class Casts(NamedTuple):
    """What a module's floating-point inputs and outputs are cast to; None: they are left as they
    are.
    """

    inputs: Dtype | None = None
    outputs: Dtype | None = None


def model_policy(case: Case) -> Precision | None:
    """The mixed precision of an engine that has one policy for the whole model, if that is the
    case's.
    """
    policies = (spec.policy(case) for spec in specs(case.engines))
    return next((policy for policy in policies if policy is not None), None)


def policies(case: Case) -> tuple[Precision | None, ...]:
    """The mixed precision of every wrap group, under the engines that the case runs."""
    if (policy := model_policy(case)) is not None:
        return (policy,) * len(case.wrap)
    return tuple(group.policy for group in case.wrap)


def roundings(case: Case, found: Facts) -> Mapping[str, str]:
    """By parameter what modules compute with in its place, as an expression of it, ``p``; no entry
    where that is the parameter, but for mixed precision.
    """
    if model_policy(case) is not None:
        return {}
    texts = {f: case.wrap[o].rounding() for f, o in found.owners.items() if o is not None}
    return {fqn: text for fqn, text in texts.items() if text}


def has_precision(case: Case) -> bool:
    """Whether modules compute with something else than the trained parameters, as groups or an
    engine are told: some have a policy of mixed precision, or gather rounded values.
    """
    rounds = any(group.rounding() for group in case.wrap)
    return rounds or any(policy is not None for policy in policies(case))


def casts(case: Case) -> Mapping[str, Casts]:
    """What the policies cast at each wrapped module.

    Under ``fully_shard`` every module of a group is cast, under FSDP1 the root only
    (``MixedPrecision.cast_root_forward_inputs``; ``cast_forward_inputs`` is off).
    """
    found: dict[str, Casts] = {}
    for index, (group, policy) in enumerate(zip(case.wrap, policies(case), strict=True)):
        if policy is None or (model_policy(case) and root_groups(case)[index] != index):
            continue
        inputs = policy.dtype_of("parameters") if policy.does("casts_inputs") else None
        found |= dict.fromkeys(group.modules, Casts(inputs, policy.dtype_of("outputs")))
    return found


def stored_dtype(case: Case, fqn: str, cast: Dtype | None) -> Dtype:
    """The dtype that a parameter is trained in; ``cast`` is that of the last ``Cast`` op, if
    any.
    """
    if cast is not None:
        return cast
    own = [entry.dtype for entry in case.dtypes if is_within(fqn, entry.target)]
    return own[-1] if own else case.dtype


def computing_dtype(case: Case, found: Facts, fqn: str, cast: Dtype | None) -> Dtype:
    """The dtype that a parameter has in a forward."""
    owner = found.owners[fqn]
    policy = None if owner is None else policies(case)[owner]
    dtype = policy and policy.computes(found.parameters[fqn])
    return dtype or stored_dtype(case, fqn, cast)


def reduction_dtype(case: Case, found: Facts, fqn: str, cast: Dtype | None) -> Dtype:
    """The dtype that the gradient of a parameter is reduced in, and accumulated in until then."""
    owner = found.owners[fqn]
    policy = None if owner is None else policies(case)[owner]
    if policy is not None and (dtype := policy.dtype_of("gradients")):
        return dtype
    if reductions_follow_parameters(case):
        return stored_dtype(case, fqn, cast)
    return computing_dtype(case, found, fqn, cast)


def reductions_follow_parameters(case: Case) -> bool:
    """Whether gradients without a ``reduce_dtype`` are reduced in the dtype of the trained
    parameter.
    """
    return REDUCTIONS_FOLLOW_GRAD_DTYPE.holds() and model_policy(case) is None


def dtypes_in_play(case: Case) -> frozenset[Dtype]:
    """Every dtype that a parameter, a reduction or an output may have, but for those of ``Cast``
    ops.
    """
    named = {case.dtype, *(entry.dtype for entry in case.dtypes)}
    for policy in policies(case):
        if policy is not None:
            named |= policy.dtypes
    return frozenset(named)


def is_low_precision(case: Case) -> bool:
    """Whether anything in the case is computed in a lower precision than the case itself."""
    return any(_bits(dtype) < _bits(case.dtype) for dtype in dtypes_in_play(case))


def _bits(dtype: Dtype) -> int:
    """The bits of the significand."""
    return {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}[dtype]


_FINER: dict[Dtype, Dtype] = {
    "bfloat16": "float32",
    "float16": "float32",
    "float32": "float64",
    "float64": "float64",
}


def _with_casts(case: Case, dtypes: Mapping[Dtype, Dtype]) -> Case:
    return replace(case, schedule=tuple(op.in_dtypes(dtypes) for op in case.schedule))


def with_unrounded_steps(case: Case) -> Case:
    """The case whose steps round to no coarser dtype than that of the parameters."""
    return replace(case, optimizer=case.optimizer.unrounded())


def finer(case: Case) -> Case:
    """The same case in the next higher precision throughout, mixed precision and casts
    included.
    """

    def policy(of: Precision | None) -> Precision | None:
        return of and of.within(_FINER)

    return replace(
        _with_casts(case, _FINER),
        dtype="float64",
        dtypes=tuple(replace(entry, dtype=_FINER[entry.dtype]) for entry in case.dtypes),
        wrap=tuple(group.with_policy(policy(group.policy)) for group in case.wrap),
        fsdp1=case.fsdp1.with_policy(policy(case.fsdp1.policy)),
        optimizer=case.optimizer.unrounded(),
    )


def uniform(case: Case, dtype: Literal["float32", "float64"]) -> Case:
    """The case without mixed precision and dtypes of its own, in ``dtype`` from beginning to
    end.
    """
    return replace(
        _with_casts(case, {"float32": dtype, "float64": dtype}),
        dtype=dtype,
        dtypes=(),
        wrap=tuple(group.with_policy(None) for group in case.wrap),
        fsdp1=case.fsdp1.with_policy(None),
        optimizer=case.optimizer.unrounded(),
    )
