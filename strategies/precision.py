"""Mixed precision: policies of wrap groups under which every forward can compute, and parameter
dtypes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from fuzzshard.analysis.checker import Checker
from fuzzshard.analysis.dtypes import model_policy
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.case.case import Case
from fuzzshard.case.options import ParameterDtype, Precision
from fuzzshard.parts import ops
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.op import Call
from fuzzshard.parts.options.precision import PRECISION_OPTIONS
from fuzzshard.strategies.swarm import PRECISION, Swarm, may_cast
from fuzzshard.strategies.tape import Tape

_DRAWN = sorted(PRECISION_OPTIONS, key=lambda option: option.place)
_VARYING = 50
"""Percent of the cases with policies, in which groups may have another one."""
_VARIED = [o for o in sorted(_DRAWN, key=lambda option: option.variation) if o.variation]


def policy(tape: Tape, case: Case) -> Precision:
    """Return any policy, mostly with parameters in bfloat16."""
    return Precision(**{option.name: option.draw(tape, case) for option in _DRAWN})


def precision(tape: Tape, swarm: Swarm, case: Case, found: Inferred) -> Case:
    """Return policies for the wrap groups, most often one for all.

    Modules want inputs of the dtype of their parameters, so a group has what the model computes
    with, given the groups before it: the policy, or a simpler one, or none.
    """
    if PRECISION not in swarm:
        return case
    base, casts = policy(tape, case), may_cast(swarm)
    drawn = _with_policies(case, [base] * len(case.wrap))
    if not computes(drawn, found, casts=casts):
        drawn = case
        for at in range(len(case.wrap)):
            drawn = _first_that_computes(drawn, at, _simpler(base, case), found, casts=casts)
    if tape.chance(_VARYING):
        for at, group in enumerate(drawn.wrap):
            varied = _varied(tape, group.precision or base, case)
            drawn = _first_that_computes(drawn, at, [varied], found, casts=casts)
    return _keeping(tape, swarm, drawn, found)


def _with_policies(case: Case, policies: Sequence[Precision | None]) -> Case:
    groups = zip(case.wrap, policies, strict=True)
    return replace(case, wrap=tuple(replace(g, precision=policy) for g, policy in groups))


def _simpler(base: Precision, case: Case) -> list[Precision]:
    """Return a policy, and what it becomes where the model does not compute with it."""
    casting = replace(base, cast_inputs=True)
    return [base, replace(base, output=case.dtype), casting, replace(casting, output=case.dtype)]


def _first_that_computes(
    case: Case, at: int, policies: Iterable[Precision | None], found: Inferred, *, casts: bool
) -> Case:
    """The case with the first of the ``policies`` in its group ``at`` with which it computes."""
    others = [group.precision for group in case.wrap]
    for each in policies:
        drawn = _with_policies(case, [*others[:at], each, *others[at + 1 :]])
        if drawn != case and computes(drawn, found, casts=casts):
            return drawn
    return case


def _keeping(tape: Tape, swarm: Swarm, case: Case, found: Inferred) -> Case:
    """Often with policies that spare parameters of one dimension, where the model computes with
    that.
    """
    if may_cast(swarm) or not tape.chance(50):
        return case
    groups = tuple(
        replace(g, precision=g.precision.keeping()) if g.precision and g.precision.param else g
        for g in case.wrap
    )
    kept = replace(case, wrap=groups)
    return kept if groups != case.wrap and computes(kept, found) else case


def _varied(tape: Tape, base: Precision, case: Case) -> Precision | None:
    """Another policy, none, or the same one."""
    at = tape.below(len(_VARIED) + 2)
    if at > len(_VARIED):
        return None
    if at == 0:
        return base
    option = _VARIED[at - 1]
    value = option.varied(tape, case, getattr(base, option.name))
    return replace(base, **{option.name: value})


def parameter_dtypes(
    tape: Tape, swarm: Swarm, case: Case, found: Inferred
) -> tuple[ParameterDtype, ...]:
    """Return another dtype for something frozen, which its group casts like the rest.

    The trainable parameters of a group must be of one dtype (``_init_mp_dtypes`` in
    torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py).
    """
    if "other_dtypes" not in swarm or case.ties or not case.freezes:
        return ()
    dtype: Dtype = tape.pick(("bfloat16", "float16"))
    chosen = (ParameterDtype(target=tape.pick(case.freezes).target, dtype=dtype),)
    fits = computes(replace(case, dtypes=chosen), found, casts=may_cast(swarm))
    return chosen if fits else ()


def in_one_dtype(case: Case) -> Case:
    """Return the case without mixed precision or parameters of another dtype."""
    groups = tuple(replace(group, precision=None) for group in case.wrap)
    return replace(case, wrap=groups, dtypes=(), fsdp1=replace(case.fsdp1, precision=None))


def computes(case: Case, found: Inferred, target: str = "", *, casts: bool = False) -> bool:
    """Return whether a forward of ``target`` is legal in its dtypes and layouts, with ``casts``
    also after a cast back to the dtype of the case.

    A policy for the whole model casts where the root begins, which is what is called first.
    """
    forward = ops.running(Call(target))
    first = (ops.running(Call()),) if target and model_policy(case) is not None else ()
    again = (ops.casting_from(case.dtype), forward) if casts else ()
    at = Checker(case, found)
    return all(at.accepts(op) for op in (*first, forward, *again))
