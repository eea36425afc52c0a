"""What one rank can tell by itself: an engine has raised, and its peers wait in a collective of
that engine.

Nothing can be trained again then, so only what needs no other run is judged: what differs by far
before the first step, tensors that are missing or have another shape, and registrations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuzzshard.analysis.dtypes import loose_comparison
from fuzzshard.analysis.schedule_state import first_step
from fuzzshard.case.case import Case
from fuzzshard.engines.registry import engine_of
from fuzzshard.oracles.bound import Bound, half_of_the_digits
from fuzzshard.oracles.compare import Difference
from fuzzshard.oracles.first_rounding import before_rounding_feeds_back
from fuzzshard.oracles.judge import agreement, tensor_findings
from fuzzshard.oracles.registration import registration_findings
from fuzzshard.parts.engines import REFERENCE
from fuzzshard.training.trace import Trace
from fuzzshard.verdict import Finding


def findings_alone(
    case: Case,
    traces: Mapping[str, Trace],
    differing: Mapping[str, Sequence[Difference]],
    rank: int,
) -> list[Finding]:
    """Return findings of the engines in ``differing``, up to where their traces end."""
    findings = []
    bound = Bound(case, traces[REFERENCE.name], last_bits=half_of_the_digits(case))
    step = first_step(case)
    for engine, found in differing.items():
        agreeing = agreement(engine, traces, differing)
        early = before_rounding_feeds_back(found, step)
        findings += tensor_findings(engine, early, loose_comparison(case), bound, agreeing, rank)
    for engine in differing:
        if engine_of(engine).predicts_groups:
            findings += registration_findings(case, traces[engine], rank)
    return findings
