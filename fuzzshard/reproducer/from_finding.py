"""What a script looks at, by the finding that it has to show."""

from __future__ import annotations

import dataclasses

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import has_precision
from fuzzshard.errors import UsageError
from fuzzshard.parts.engines import REFERENCE, spec_of, specs
from fuzzshard.reproducer.aim import OF_TYPE, ROUNDING, Aim, Kind, Values
from fuzzshard.reproducer.losses import microbatches
from fuzzshard.verdict import MISSING, NOT_REFUSED, TENSOR_ORACLES, UNEXPECTED, Finding

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
    engine, _, oracle = rest.partition("/")
    if kind in ("crash", "death", "desync"):
        return Aim("desync" if kind == "desync" else "raise", engine)
    oracle = oracle.partition("/")[0]
    by_groups = (spec.name for spec in specs(case.engines) if spec.applies_groups)
    engine = engine or next(by_groups, case.engines[0])
    match oracle:
        case (
            "registration"
            | "communication"
            | "hooks"
            | "warning"
            | "expectation"
            | "unreduced_gradient"
            | "leak"
        ):
            raise UsageError(
                "a script for this signature needs the finding", "pass the finding of its entry"
            )
        case "collectives":
            return Aim("collectives", engine)
        case "replicas":
            return Aim("replicas", engine)
        case _:
            oracles = (oracle,) if oracle else _judged_everywhere(engine)
            return Aim("compare", engine, oracles, bound=None)


def _from_finding(case: Case, finding: Finding) -> Aim:
    engine, op = finding.engine, finding.op
    match finding.oracle:
        case "deadline":
            return Aim("desync", engine)
        case "exit":
            return Aim("desync" if finding.detail in ("desync", "SIGABRT") else "raise", engine)
        case "exception":
            return (
                Aim("desync", engine)
                if finding.detail == "desync"
                else Aim("raise", engine, op=op)
            )
        case "registration":
            return Aim("registration", engine, op=op, name=finding.name, expected=finding.expected)
        case "communication":
            return Aim(
                "communication", engine, op=op, name=finding.name, expected=finding.expected
            )
        case "hooks":
            return Aim("hooks", engine, op=op, name=finding.name, expected=finding.expected)
        case "warning":
            return Aim("warning", engine)
        case "expectation" if finding.detail == NOT_REFUSED:
            if op < 0:
                raise UsageError("no script expects an error of a constructor", "replay the case")
            return Aim("error", engine, op=op, expected=finding.name)
        case "expectation":
            errors = [e.op for e in case.expect if e.engine == engine and e.kind == "error"]
            return Aim("error", engine, op=errors[0]) if errors else Aim("warning", engine)
        case "collectives":
            return Aim("collectives", engine)
        case "replicas":
            return Aim("replicas", engine)
        case "leak":
            kind: Kind = "outlives" if finding.detail == "survivor" else "held"
            held = Aim(kind, engine, op=op, name=finding.name, expected=finding.expected)
            return dataclasses.replace(held, observed=finding.observed, detail=finding.detail)
        case "unreduced_gradient":
            held = Aim("held", engine, op=op, name=finding.name, detail="unreduced")
            if finding.detail in (MISSING, UNEXPECTED):
                return dataclasses.replace(held, expected=finding.detail)
            if finding.expected.startswith(OF_TYPE):
                return dataclasses.replace(held, expected=finding.expected)
    if finding.rung == "relation":
        return Aim("relation", engine, (finding.oracle,), op)
    if (
        finding.oracle == "resume"
        and finding.detail in (MISSING, UNEXPECTED)
        and not spec_of(engine).has_units
    ):
        return Aim("presence", engine, ("resume",), op, finding.name, expected=finding.detail)
    bounded = finding.rung in ("bounded", "precision")
    bound = finding.bound if bounded else 0.0
    if bounded and finding.detail in (MISSING, UNEXPECTED):
        bound = None
    alone = (
        bounded
        or finding.oracle == "unreduced_gradient"
        or finding.oracle in spec_of(engine).may_differ
    )
    if finding.engine == REFERENCE.name:
        raise UsageError(
            "the finding is about the case itself, not about an engine", "mend the case"
        )
    aim = Aim("compare", engine, (finding.oracle,), op, finding.name if alone else "", bound)
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
    if aim.kind == "registration" and _class(finding.observed) != _class(finding.expected):
        return dataclasses.replace(seeded, expected=_class(finding.expected))
    if aim.kind == "relation":
        return seeded
    if aim.kind != "compare":
        return dataclasses.replace(seeded, name=aim.name)
    if finding.detail in (MISSING, UNEXPECTED) and _is_attribute(case, aim, finding):
        return dataclasses.replace(seeded, kind="presence", expected=finding.detail)
    if finding.expected.startswith(OF_TYPE) and aim.oracles[0] in ("output", "loss"):
        return dataclasses.replace(seeded, kind="type", expected=finding.expected)
    if finding.error is None:
        return seeded
    if has_precision(case) and aim.oracles == ("unreduced_gradient",) and aim.op is not None:
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


def _class(text: str) -> str:
    """``"DTensor[2, 2] float32 S(0) on mesh [2]"`` -> ``"DTensor"``."""
    return text.partition("[")[0]


def _is_attribute(case: Case, aim: Aim, finding: Finding) -> bool:
    """Whether what is missing can be read from a parameter or an input.

    Under FSDP1 a rank has a part of the elements, or none: a gradient is missing where all ranks
    lack it.
    """
    if spec_of(aim.engine).has_units:
        missing = finding.detail == MISSING and aim.oracles[0] == "gradient"
        return missing and not spec_of(aim.engine).has_flat_parameters(case)
    return aim.oracles[0] in ("gradient", "input_gradient")


_NOT_GATHERED = ("registered_parameter", "resume")
"""What units have in flat parameters only."""


def _judged_everywhere(engine: str) -> tuple[str, ...]:
    spec = spec_of(engine)
    skipped = (*spec.may_differ, *(_NOT_GATHERED if spec.has_units else ()))
    return tuple(oracle for oracle in TENSOR_ORACLES if oracle not in skipped)
