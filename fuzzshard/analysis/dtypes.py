"""Dtypes: what mixed precision asks for, and what each parameter is stored in and computed
with.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.analysis.schedule_state import root_groups
from fuzzshard.case.case import Case
from fuzzshard.case.options import DDP, FSDP1, Precision
from fuzzshard.case.paths import is_within
from fuzzshard.contracts import REDUCTIONS_FOLLOW_GRAD_DTYPE
from fuzzshard.parts.dtypes import DIGITS, LOW_PRECISION, Dtype, promote
from fuzzshard.parts.engines import specs
from fuzzshard.parts.op import Op

Hooked = TypeVar("Hooked", DDP, FSDP1)


class Casts(NamedTuple):
    """What a module's floating-point inputs and outputs are cast to; None: they are left as they
    are.
    """

    inputs: Dtype | None = None
    outputs: Dtype | None = None


def model_policy(case: Case) -> Precision | None:
    """Return the mixed precision of an engine that has one policy for the whole model, if that is
    the case's.
    """
    options = (getattr(case, spec.options) for spec in specs(case.engines) if spec.options)
    policies: Iterator[Precision | None] = (getattr(each, "precision", None) for each in options)
    return next((policy for policy in policies if policy is not None), None)


def policies(case: Case) -> tuple[Precision | None, ...]:
    """Return the mixed precision of every wrap group, under the engines that the case runs."""
    if (policy := model_policy(case)) is not None:
        return (policy,) * len(case.wrap)
    return tuple(group.precision for group in case.wrap)


def roundings(case: Case, found: Inferred) -> Mapping[str, str]:
    """Return, by parameter, an expression of ``p`` for the rounded value that a forward computes
    with, where a group gathers rounded values.
    """
    if model_policy(case) is not None:
        return {}
    texts = {f: case.wrap[o].rounding() for f, o in found.owners.items() if o is not None}
    return {fqn: text for fqn, text in texts.items() if text}


def has_precision(case: Case) -> bool:
    """Return whether modules compute with something else than the trained parameters, as groups or
    an engine are told: some have a policy of mixed precision, or gather rounded values.
    """
    rounds = any(group.rounding() for group in case.wrap)
    return rounds or any(policy is not None for policy in policies(case))


def casts(case: Case) -> Mapping[str, Casts]:
    """Return, by wrapped module, to which dtypes its policy casts inputs and outputs.

    Under ``fully_shard`` every module of a group is cast, under FSDP1 the root only
    (``MixedPrecision.cast_root_forward_inputs``; ``cast_forward_inputs`` is off).
    """
    found: dict[str, Casts] = {}
    for index, (group, policy) in enumerate(zip(case.wrap, policies(case), strict=True)):
        if policy is None or (model_policy(case) and root_groups(case)[index] != index):
            continue
        inputs = policy.param if policy.cast_inputs else None
        found |= dict.fromkeys(group.modules, Casts(inputs, policy.output))
    return found


def stored_dtype(case: Case, fqn: str, cast: Dtype | None) -> Dtype:
    """Return the dtype that a parameter is trained in; ``cast`` is that of the last ``Cast`` op,
    if any.
    """
    if cast is not None:
        return cast
    own = [entry.dtype for entry in case.dtypes if is_within(fqn, entry.target)]
    return own[-1] if own else case.dtype


def computing_dtype(case: Case, found: Inferred, fqn: str, cast: Dtype | None) -> Dtype:
    """Return the dtype that a parameter has in a forward."""
    owner = found.owners[fqn]
    policy = None if owner is None else policies(case)[owner]
    dtype = policy and policy.computes(found.parameters[fqn])
    return dtype or stored_dtype(case, fqn, cast)


def reduction_dtype(case: Case, found: Inferred, fqn: str, cast: Dtype | None) -> Dtype | None:
    """Return the dtype that the gradient of a parameter is reduced in by itself, and accumulated
    in until then; None: whichever comes.

    That is for operators to say where ``grad_dtype`` is None, "which accepts any dtype for
    incoming gradients" (``torch.Tensor.grad_dtype``): the RMSNorm of torch computes in float32 at
    least, and its parameter gets that.
    """
    owner = found.owners[fqn]
    policy = None if owner is None else policies(case)[owner]
    if policy is not None and (dtype := policy.reduce):
        return dtype
    computing, due = computing_dtype(case, found, fqn, cast), grad_dtype(case, fqn, cast)
    if due is None:
        others = {op.casts_to for op in case.schedule if op.casts_to} | dtypes_in_play(case)
        return None if others != {computing} or computing in LOW_PRECISION else computing
    return due if reductions_follow_parameters(case) else computing


def grad_dtype(case: Case, fqn: str, cast: Dtype | None) -> Dtype | None:
    """Return the ``grad_dtype`` of a parameter; None: its gradient may have any."""
    said = grad_dtypes_set(case)
    return said[fqn] if fqn in said else stored_dtype(case, fqn, cast)


@functools.lru_cache(maxsize=256)
def grad_dtypes_set(case: Case) -> Mapping[str, Dtype | None]:
    """Return what the user sets before the first forward, by parameter."""
    return {fqn: dtypes[-1] for fqn, dtypes in _grad_dtypes_over_time(case).items()}


def _grad_dtypes_over_time(case: Case) -> Mapping[str, list[Dtype | None]]:
    """Return all that the user sets before the first forward, by parameter."""
    said: dict[str, list[Dtype | None]] = {}
    for retyped in (op.retypes for op in case.schedule if op.retypes):
        for fqn in inferred(case).parameters:
            if is_within(fqn, retyped.target):
                said.setdefault(fqn, []).append(retyped.dtype)
    return said


def held_dtype(case: Case, found: Inferred, fqn: str, cast: Dtype | None) -> Dtype | None:
    """Return the dtype that a reduced gradient has, if all of its group are reduced with it; None:
    whichever comes.
    """
    if (due := grad_dtype(case, fqn, cast)) is not None:
        return due
    owner = found.owners[fqn]
    group = [fqn] if owner is None else [f for f, o in found.owners.items() if o == owner]
    return promoted_reduction(case, found, group, cast)


def promoted_reduction(
    case: Case, found: Inferred, fqns: Collection[str], cast: Dtype | None
) -> Dtype | None:
    """Return the dtype of gradients that are reduced together; None: what comes decides it.

    "Gradients with different dtypes in one communication group are reduced in their promoted
    dtype" (``MixedPrecisionPolicy``).
    """
    promoted: Dtype | None = None
    for fqn in fqns:
        if (dtype := reduction_dtype(case, found, fqn, cast)) is None:
            return None
        promoted = promote(promoted or dtype, dtype)
    return promoted


def gradients_are_like_zeros(case: Case, found: Inferred) -> bool:
    """Return whether gradients have the dtypes of their parameters, whichever of a group are
    reduced together, and no ``grad_dtype`` that the user sets forbids them.
    """
    said = _grad_dtypes_over_time(case).items()
    may = all({*dtypes} <= {None, stored_dtype(case, fqn, None)} for fqn, dtypes in said)
    return may and _have_own_dtype(case, found)


def steps_take_gradients(case: Case, found: Inferred) -> bool:
    """Return whether the optimizer supports the dtypes that gradients may have, in whichever way
    those of a group are reduced together.
    """
    optimizer = case.optimizer
    if optimizer.wants_own_dtype:
        return _have_own_dtype(case, found)
    return not optimizer.grad_scaler or "float16" not in _retyped_gradients(case, found)


def cuda_steps_take_gradients(case: Case, found: Inferred) -> bool:
    """Return whether it does on CUDA, too, where optimizers step tensors in lists."""
    return not case.optimizer.steps_lists_on_cuda or _have_own_dtype(case, found)


def cuda_scales_gradients(case: Case, found: Inferred) -> bool:
    """Return whether CUDA's kernel takes all gradients that a ``GradScaler`` unscales."""
    return not case.optimizer.grad_scaler or "bfloat16" not in _retyped_gradients(case, found)


def _have_own_dtype(case: Case, found: Inferred) -> bool:
    retyped = _retyped_gradients(case, found)
    return all(own == dtype for dtype, owns in retyped.items() for own in owns)


def _retyped_gradients(case: Case, found: Inferred) -> Mapping[Dtype | None, set[Dtype]]:
    """By the dtype that gradients may have, None if nothing says it, those of their parameters; if
    the user sets some.
    """
    had: dict[Dtype | None, set[Dtype]] = {}
    if not grad_dtypes_set(case):
        return had
    casts: list[Dtype | None] = [None, *(op.casts_to for op in case.schedule if op.casts_to)]
    for fqn, cast in itertools.product(found.parameters, casts):
        alone = grad_dtype(case, fqn, cast) or reduction_dtype(case, found, fqn, cast)
        for dtype in (alone, held_dtype(case, found, fqn, cast)):
            had.setdefault(dtype, set()).add(stored_dtype(case, fqn, cast))
    return had


def reductions_follow_parameters(case: Case) -> bool:
    """Return whether gradients without a ``reduce_dtype`` are reduced in the dtype of the trained
    parameter.
    """
    return REDUCTIONS_FOLLOW_GRAD_DTYPE.holds() and model_policy(case) is None


def dtypes_in_play(case: Case) -> frozenset[Dtype]:
    """Return every dtype that a parameter, a reduction, an op or an output may have, but for those
    of ``Cast`` ops.
    """
    named = {case.dtype, *(entry.dtype for entry in case.dtypes)}
    named |= {d for op in case.schedule if not op.casts_to for d in _dtypes_of(op).values()}
    for policy in policies(case):
        if policy is not None:
            named |= policy.dtypes
    return frozenset(named)


def computed_dtypes(case: Case) -> frozenset[Dtype]:
    """Return every dtype that something is computed in, those of ``Cast`` ops included, and those
    in which a hook adds up gradients in any order.
    """
    cast = {op.casts_to for op in case.schedule if op.casts_to}
    return dtypes_in_play(case) | cast | hooked_dtypes(case) - hooked_dtypes(lifted(case))


def hooked_dtypes(case: Case) -> frozenset[Dtype]:
    """Return the dtypes in which hooks average gradients, where they cast them."""
    dtypes = (options.averages_in_half for options in (case.ddp, case.fsdp1))
    return frozenset(dtype for dtype in dtypes if dtype)


def is_low_precision(case: Case) -> bool:
    """Return whether anything is computed in a lower precision than the case itself."""
    return any(DIGITS[dtype] < DIGITS[case.dtype] for dtype in dtypes_in_play(case))


def last_bit(case: Case) -> float:
    """Return what the last bit of a number is worth, relative to the number, in the coarsest dtype
    that ``case`` computes something in.
    """
    return float(2.0 ** (1 - min(DIGITS[dtype] for dtype in computed_dtypes(case))))


def loose_comparison(case: Case) -> str:
    """Return the kind of comparison of a case whose values are rounded differently by every
    engine.
    """
    return "precision" if is_low_precision(case) else "bounded"


_LIFTED: dict[Dtype, Dtype] = {
    "bfloat16": "float32",
    "float16": "float32",
    "float32": "float32",
    "float64": "float64",
}


def _dtypes_of(op: Op) -> dict[str, Dtype]:
    """Return the dtypes that an op names, by field."""
    values = ((name, getattr(op, name)) for name in op.__struct_fields__)
    return {name: value for name, value in values if value in DIGITS}


def _with_ops_in(case: Case, dtypes: Mapping[Dtype, Dtype]) -> Case:
    """Return the case whose ops name other dtypes in the place of some."""
    named = ((op, _dtypes_of(op).items()) for op in case.schedule)
    ops = (replace(op, **{name: dtypes[dtype] for name, dtype in of_op}) for op, of_op in named)
    return replace(case, schedule=tuple(ops))


def with_unrounded_steps(case: Case) -> Case:
    """Return the case whose steps round to no coarser dtype than that of the parameters."""
    return replace(case, optimizer=case.optimizer.unrounded())


def _unrounded(case: Case) -> Case:
    """Return the same without hooks that average over more than two ranks, and may round in any
    order.
    """

    def exact(of: Hooked) -> Hooked:
        rounds = of.averages_in_half and case.mesh.data_size > 2
        return replace(of, hook=of.exact_hook) if rounds else of

    return replace(with_unrounded_steps(case), ddp=exact(case.ddp), fsdp1=exact(case.fsdp1))


def lifted(case: Case, dtype: Dtype | None = None) -> Case:
    """Return the same case with float32 wherever it has half precision; perhaps in another
    ``dtype``, from which its policies cast.
    """

    def policy(of: Precision | None) -> Precision | None:
        return of and of.within(_LIFTED)

    case = _unrounded(_with_ops_in(case, _LIFTED))
    return replace(
        case,
        dtype=dtype or _LIFTED[case.dtype],
        dtypes=tuple(replace(entry, dtype=_LIFTED[entry.dtype]) for entry in case.dtypes),
        wrap=tuple(replace(group, precision=policy(group.precision)) for group in case.wrap),
        fsdp1=replace(case.fsdp1, precision=policy(case.fsdp1.precision)),
    )


def uniform(case: Case, dtype: Literal["float32", "float64"]) -> Case:
    """Return the case without mixed precision and dtypes of its own, in ``dtype`` from beginning
    to end.
    """
    case = _unrounded(_with_ops_in(case, dict.fromkeys(DIGITS, dtype)))
    return replace(
        case,
        dtype=dtype,
        dtypes=(),
        wrap=tuple(replace(group, precision=None) for group in case.wrap),
        fsdp1=replace(case.fsdp1, precision=None),
    )


FINER: Mapping[str, Callable[[Case], Case]] = {
    "float64": lambda case: uniform(case, "float64"),
    "float32 for half precision": lifted,
    "float32 for half precision, parameters of float64": lambda case: lifted(case, "float64"),
}
"""Precisions that tell a mistake of a case from rounding, by what they are called.

In float64 from beginning to end. And with float32 for half precision: what is promised in float32
is asked for there, once with parameters of float32 and once of float64, so that policies have
something to cast.
"""
