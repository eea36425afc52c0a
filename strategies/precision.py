"""Mixed precision: policies of wrap groups under which every forward can compute, and parameter
dtypes.
"""

from __future__ import annotations

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
_VARIED = [o for o in sorted(_DRAWN, key=lambda option: option.variation) if o.variation]


def policy(tape: Tape, case: Case) -> Precision:
    """Any policy, mostly with parameters in bfloat16."""
    return Precision(**{option.name: option.draw(tape, case) for option in _DRAWN})


def precision(tape: Tape, swarm: Swarm, case: Case, found: Inferred) -> Case:
    """Policies for the wrap groups, most often one for all; or none, where no policy lets the
    model compute.

    Modules want inputs of the dtype of their parameters, so what is drawn is simplified until that
    holds.
    """
    if PRECISION not in swarm:
        return case
    base = policy(tape, case)
    each: list[Precision | None] = [base] * len(case.wrap)
    if tape.chance(35):
        each = [_varied(tape, base, case) for _ in each]
    plain = base.without_casts()
    options: list[list[Precision | None]] = [
        each,
        [base] * len(each),
        [plain] * len(each),
        [replace(plain, output=case.dtype)] * len(each),
    ]
    casts = may_cast(swarm)
    for policies in options:
        groups = tuple(
            replace(group, precision=policy)
            for group, policy in zip(case.wrap, policies, strict=True)
        )
        if computes(replace(case, wrap=groups), found, casts=casts):
            return _keeping(tape, swarm, replace(case, wrap=groups), found)
    return case


def _keeping(tape: Tape, swarm: Swarm, case: Case, found: Inferred) -> Case:
    """Often with policies that spare parameters of one dimension, where the model computes with
    that.
    """
    if may_cast(swarm) or not tape.chance(30):
        return case
    groups = tuple(
        replace(g, precision=g.precision.keeping()) if g.precision and g.precision.param else g
        for g in case.wrap
    )
    kept = replace(case, wrap=groups)
    return kept if groups != case.wrap and computes(kept, found) else case


def _varied(tape: Tape, base: Precision, case: Case) -> Precision | None:
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
    """Another dtype for something frozen, which its group casts like the rest.

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
    """The case without mixed precision, and without parameters that have a dtype of their own."""
    groups = tuple(replace(group, precision=None) for group in case.wrap)
    return replace(case, wrap=groups, dtypes=(), fsdp1=replace(case.fsdp1, precision=None))


def computes(case: Case, found: Inferred, target: str = "", *, casts: bool = False) -> bool:
    """Whether dtypes and layouts meet in a forward, with ``casts`` in every dtype that there may
    be.

    A policy for the whole model casts where the root begins, which is what is called first.
    """
    forward = ops.running(Call(target))
    first = (ops.running(Call()),) if target and model_policy(case) is not None else ()
    again = (ops.casting_from(case.dtype), forward) if casts else ()
    at = Checker(case, found)
    return all(at.accepts(op) for op in (*first, forward, *again))
