"""What one rank can tell by itself: an engine has raised, and its peers wait in a collective of that engine.

No twin and no rerun of the reference can train then, so only what needs none of them is judged: bitwise
equality where it is due, tensors that are missing or have another shape, and registrations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuzzshard.case.case import Case
from fuzzshard.oracles.compare import Difference
from fuzzshard.oracles.judge import tensor_findings, vote
from fuzzshard.oracles.registration import registration_findings
from fuzzshard.oracles.rungs import loose_rung, split_at_rounding
from fuzzshard.training.trace import Trace
from fuzzshard.verdict import Finding


def findings_alone(
    case: Case,
    traces: Mapping[str, Trace],
    differing: Mapping[str, Sequence[Difference]],
    device: str,
    rank: int,
) -> list[Finding]:
    """Of the engines in ``differing``, up to where their traces end."""
    findings = []
    for engine, found in differing.items():
        culprit = vote(case, engine, traces, differing)
        strict, loose = split_at_rounding(case, engine, found, device)
        findings += tensor_findings(engine, strict, "bitwise", None, culprit, rank)
        incomparable = [d for d in loose if not d.comparable]
        findings += tensor_findings(engine, incomparable, loose_rung(case), None, culprit, rank)
    if "fully_shard" in differing:
        findings += registration_findings(case, traces["fully_shard"], rank)
    return findings
