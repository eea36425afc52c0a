"""What a script looks at, by the finding that it has to show."""

from __future__ import annotations

import dataclasses

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import has_precision
from fuzzshard.case.losses import microbatches
from fuzzshard.errors import UsageError
from fuzzshard.parts.engines import REFERENCE, spec_of, specs
from fuzzshard.parts.oracle import MISSING, UNEXPECTED, TensorOracle, TensorType
from fuzzshard.parts.oracles import TENSOR_ORACLES, named, tensor_oracle
from fuzzshard.reproducer.aim import ROUNDING, Aim, Values
from fuzzshard.reproducer.optimizer import loads_what_a_save_made
from fuzzshard.verdict import Finding

LEAST_MARGIN = 1e3
"""How many times larger than its bound a difference must be for values of another seed to show it:
rounding moves them by another amount, of the same order."""


def aim_of(case: Case, signature: str, finding: Finding | None, values: Values = "named") -> Aim:
    """Raises :class:`UsageError` where the signature alone does not say what is expected.

    Also where ``values`` of another seed need not show the ``finding``.
    """
    if finding is not None:
        aim = _from_finding(case, finding)
        return _seeded(case, aim, finding) if values == "seeded" else aim
    kind, _, rest = signature.partition("/")
    engine, _, rest = rest.partition("/")
    if kind in ("crash", "death", "desync"):
        return Aim("desync" if kind == "desync" else "raise", engine)
    name = rest.partition("/")[0]
    by_groups = (spec.name for spec in specs(case.engines) if spec.applies_groups)
    engine = engine or next(by_groups, case.engines[0])
    if not name:
        return Aim("compare", engine, _judged_everywhere(engine), bound=None)
    oracle = named(name)
    if oracle.needs_finding:
        raise UsageError(
            "a script for this signature needs the finding", "pass the finding of its entry"
        )
    if isinstance(oracle, TensorOracle):
        return Aim("compare", engine, (oracle,), bound=None)
    return Aim("alone", engine, rule=oracle)


def _from_finding(case: Case, finding: Finding) -> Aim:
    engine, op, rule = finding.engine, finding.op, finding.rule
    of_whole = isinstance(rule, TensorOracle) and not rule.in_flat
    if spec_of(engine).in_stages and (of_whole or rule.across_ranks):
        raise UsageError(
            "no script compares forwards, states, or ranks that have different stages",
            "replay the case",
        )
    own = rule.aim(case, finding, Aim("alone", engine, rule=rule))
    if own is not None:
        return own
    oracle = tensor_oracle(rule.name)
    presence, expected = finding.detail in (MISSING, UNEXPECTED), finding.detail
    if oracle.is_state and not presence and loads_what_a_save_made(case, finding.name, op):
        presence, expected = True, UNEXPECTED  # the reference of a script does not save
    if oracle.is_state and presence and not spec_of(engine).has_units:
        return Aim("presence", engine, (oracle,), op, finding.name, expected=expected)
    bounded = finding.rung in ("bounded", "precision")
    bound = finding.bound if bounded else 0.0
    if bounded and presence:
        bound = None
    alone = bounded or oracle.gradient == "waiting" or spec_of(engine).may_differ(oracle)
    if finding.engine == REFERENCE.name:
        raise UsageError(
            "the finding is about the case itself, not about an engine", "correct the case"
        )
    aim = Aim("compare", engine, (oracle,), op, finding.name if alone else "", bound)
    return dataclasses.replace(aim, error=finding.error or 0.0) if bound else aim


def _seeded(case: Case, aim: Aim, finding: Finding) -> Aim:
    """The aim of a script with values of its own: at one tensor, whether it is there, or its
    type.
    """
    if case.init == "meta" or case.dtypes or any(op.casts_to for op in case.schedule):
        raise UsageError("the values of this case are copied into its model", "use the named ones")
    rebuilds = any(op.rebuilds for op in case.schedule)
    if rebuilds and aim.kind != "presence":
        raise UsageError(
            "the model of this case is built anew with other values", "use the named ones"
        )
    seeded = dataclasses.replace(aim, values="seeded", name=finding.name or aim.name)
    if aim.kind != "compare":
        return aim.rule.seeded(finding, seeded.but(name=aim.name))
    if finding.detail in (MISSING, UNEXPECTED) and _is_attribute(case, aim, finding):
        return dataclasses.replace(seeded, kind="presence", expected=finding.detail)
    if finding.type_due and (aim.oracles[0].of_forward or _is_dtype(aim, finding)):
        return dataclasses.replace(seeded, kind="type", expected=finding.expected)
    if finding.error is None:
        return seeded
    if has_precision(case) and aim.has("waiting") and aim.op is not None:
        if microbatches(case, aim.op) < 2 or case.tensor_parallel:
            raise UsageError(
                "no script emulates mixed precision on a plain model", "replay the case"
            )
        return dataclasses.replace(seeded, kind="accumulation", oracles=())
    if has_precision(case) and finding.rung != "precision":
        raise UsageError("nobody has measured what low precision explains here", "replay the case")
    rounding = aim.bound or ROUNDING[case.dtype]
    if aim.bound is None or not finding.error > LEAST_MARGIN * rounding:
        raise UsageError("the difference is not far above its bound", "use the named values")
    return dataclasses.replace(seeded, error=finding.error, bound=aim.bound)


def _is_dtype(aim: Aim, finding: Finding) -> bool:
    """Whether nothing but the dtype of a tensor is wrong, of which a rank may have a part, and the
    script has a name for it.
    """
    due, found = finding.type_due, TensorType.read(finding.observed)
    if due is None or found is None or spec_of(aim.engine).has_units:
        return False
    return found._replace(dtype=due.dtype) == due


def _is_attribute(case: Case, aim: Aim, finding: Finding) -> bool:
    """Whether what is missing can be read from a parameter or an input.

    Under FSDP1 a rank has a part of the elements, or none: a gradient is missing where all ranks
    lack it.
    """
    if spec_of(aim.engine).has_units:
        missing = finding.detail == MISSING and aim.oracles[0].gradient == "reduced"
        return missing and not spec_of(aim.engine).has_flat_parameters(case)
    return aim.oracles[0].gradient in ("reduced", "input")


def _judged_everywhere(engine: str) -> tuple[TensorOracle, ...]:
    spec = spec_of(engine)
    return tuple(
        oracle
        for oracle in TENSOR_ORACLES
        if not spec.may_differ(oracle)
        and (oracle.gathered or not spec.has_units)
        and (spec.has_all_states or not oracle.is_state)
        and (oracle.in_flat or not spec.in_stages)
    )
