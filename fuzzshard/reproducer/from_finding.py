"""What a script asserts, by the finding that it has to show."""

from __future__ import annotations

from fuzzshard.analysis.dtypes import has_precision
from fuzzshard.analysis.schedule_state import first_step
from fuzzshard.case.case import Case
from fuzzshard.errors import UsageError
from fuzzshard.parts.engines import REFERENCE, spec_of, specs
from fuzzshard.parts.op import BY_NAME
from fuzzshard.parts.oracle import MISSING, UNEXPECTED, TensorOracle, TensorType
from fuzzshard.parts.oracles import TENSOR_ORACLES, named, tensor_oracle
from fuzzshard.program.engine_script import engine_script
from fuzzshard.reproducer.assertion import ROUNDING, Assertion
from fuzzshard.verdict import Finding

LEAST_MARGIN = 1e2
"""How many times larger than its bound a difference must be for other values to show it: rounding
moves them by another amount, of the same order."""


def assertion_of(case: Case, signature: str, finding: Finding | None, seed: int = 0) -> Assertion:
    """Return what a script of values of that ``seed`` asserts.

    Raises :class:`UsageError` where the signature alone does not say what is expected, and where
    other values need not show the ``finding``.
    """
    if finding is not None:
        return _from_finding(case, finding).but(seed=seed)
    kind, _, rest = signature.partition("/")
    engine, _, rest = rest.partition("/")
    if kind in ("crash", "death", "desync"):
        return Assertion("desync" if kind == "desync" else "raise", engine, seed=seed)
    name = rest.partition("/")[0]
    by_groups = (spec.name for spec in specs(case.engines) if spec.applies_groups)
    engine = engine or next(by_groups, case.engines[0])
    if not name:
        return Assertion("compare", engine, _judged_everywhere(engine), bound=None, seed=seed)
    oracle = named(name)
    if oracle.needs_finding:
        raise UsageError(
            "a script for this signature needs the finding", "pass the finding of its entry"
        )
    if isinstance(oracle, TensorOracle):
        return Assertion("compare", engine, (oracle,), bound=None, seed=seed)
    return Assertion("alone", engine, rule=oracle, seed=seed)


def _from_finding(case: Case, finding: Finding) -> Assertion:
    engine, op, rule = finding.engine, finding.op, finding.rule
    of_whole = isinstance(rule, TensorOracle) and not rule.in_flat
    if spec_of(engine).in_stages and (of_whole or rule.across_ranks):
        raise UsageError(
            "no script compares forwards, states, or ranks that have different stages",
            "replay the case",
        )
    own = rule.assertion(case, finding, Assertion("alone", engine, rule=rule))
    if own is not None:
        return own
    if engine == REFERENCE.name:
        raise UsageError(
            "the finding is about the case itself, not about an engine", "correct the case"
        )
    oracle, detail = tensor_oracle(rule.name), finding.detail
    is_state = oracle.is_state and detail not in (MISSING, UNEXPECTED)
    if is_state and loads_what_a_save_made(case, finding.name, op):
        detail = UNEXPECTED  # the reference of a script does not save
    assertion = Assertion("compare", engine, (oracle,), op, finding.name, bound=None)
    if detail in (MISSING, UNEXPECTED) and _is_attribute(case, oracle, engine, detail):
        return assertion.but(kind="presence", expected=detail)
    if finding.type_due and (oracle.of_forward or _is_dtype(engine, finding)):
        return assertion.but(kind="type", expected=finding.expected)
    if finding.error is None:
        return assertion
    if has_precision(case) and finding.comparison != "precision":
        raise UsageError("nobody has measured what low precision explains here", "replay the case")
    bound = finding.bound if finding.comparison in ("bounded", "precision") else 0.0
    if bound is None or not finding.error > LEAST_MARGIN * (bound or ROUNDING[case.dtype]):
        raise UsageError("the difference is not far above its bound", "replay the case")
    return assertion.but(error=finding.error, bound=bound)


def _is_dtype(engine: str, finding: Finding) -> bool:
    """Return whether nothing but the dtype of a tensor is wrong, of which a rank may have a part,
    and the script has a name for it.
    """
    due, found = finding.type_due, TensorType.read(finding.observed)
    if due is None or found is None or spec_of(engine).has_units:
        return False
    return found._replace(dtype=due.dtype) == due


def _is_attribute(case: Case, oracle: TensorOracle, engine: str, detail: str) -> bool:
    """Return whether what is missing can be read from a parameter, an input or the optimizer.

    Under FSDP1 a rank has a part of the elements, or none: a gradient is missing where all ranks
    lack it.
    """
    spec = spec_of(engine)
    if not spec.has_units:
        return oracle.is_state or oracle.gradient in ("reduced", "input")
    missing = detail == MISSING and oracle.gradient == "reduced"
    return missing and not engine_script(engine).flat_units(case)


def _judged_everywhere(engine: str) -> tuple[TensorOracle, ...]:
    spec = spec_of(engine)
    return tuple(
        oracle
        for oracle in TENSOR_ORACLES
        if oracle.name not in spec.differs_in
        and (oracle.gathered or not spec.has_units)
        and (oracle.in_flat or not spec.in_stages)
    )


def made_by_saves(case: Case, name: str) -> float | None:
    """Return what a save on disk may fill the state ``name`` with, where no step has made it;
    None: there is no such save.

    ``name`` is that of a finding, "momentum_buffer of a.weight".
    """
    saves = any(op.via in BY_NAME for op in case.schedule)
    return case.optimizer.initially(name.partition(" of ")[0]) if saves else None


def loads_what_a_save_made(case: Case, name: str, op: int) -> bool:
    """Return whether ``op`` loads ``name`` as a save on disk before the first step made it."""
    saves = [index for index, earlier in enumerate(case.schedule[:op]) if earlier.via]
    is_early = case.schedule[op].loads and saves and saves[-1] < first_step(case)
    return bool(is_early) and made_by_saves(case, name) is not None
