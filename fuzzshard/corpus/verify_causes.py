"""Whether entries have the causes that they name: they fail on torch as it is, and not with their
mend.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import Expected, expected, is_there, seen_elsewhere
from fuzzshard.corpus.outcome import obstacle
from fuzzshard.corpus.verify import Condition
from fuzzshard.mending.mend import own_mends
from fuzzshard.mending.source import why_not
from fuzzshard.runner import Runner
from fuzzshard.verdict import Status, Verdict


@dataclasses.dataclass(frozen=True)
class CauseVerified:
    """One entry and its cause: OK, UNSHOWN or NOT RUN, with a line of why."""

    path: Path
    cause: str
    condition: Condition
    message: str = ""
    seconds: float = 0.0


def verify_cause(
    world: Runner,
    path: Path,
    entry: CorpusEntry,
    device: str,
    num_ranks: int,
    mends: tuple[str, ...],
    torch: str,
) -> CauseVerified:
    """Runs the case on ``torch`` as it is, with its own mend alone, and with all ``mends``.

    Under another release than the entry's a root may show in another way. A tripwire has to be
    tripped, and the signature of what cannot be told otherwise has to match.
    """
    began = time.monotonic()
    condition, message = _verified(world, entry, device, num_ranks, mends, torch)
    return CauseVerified(path, entry.cause, condition, message, time.monotonic() - began)


def _verified(
    world: Runner,
    entry: CorpusEntry,
    device: str,
    num_ranks: int,
    mends: tuple[str, ...],
    torch: str,
) -> tuple[Condition, str]:
    if reason := obstacle(entry, "cuda" if device == "cuda" else "cpu", num_ranks):
        return Condition.NOT_RUN, reason
    if expected(entry, torch, device) is not Expected.FINDING:
        return Condition.NOT_RUN, f"not known to be in torch {torch}"
    if (mend := own_mends().get(entry.cause)) is None:
        return (
            Condition.UNSHOWN,
            f"there is no mend {entry.cause!r}" if entry.cause else "it names no cause",
        )
    if not mend.torch.include(torch):
        return Condition.UNSHOWN, f"its mend is for torch {mend.torch.text()}"
    if unfit := why_not(mend):
        return Condition.UNSHOWN, f"torch is not what its mend knows: {unfit}"
    stock = _run(world, entry)
    if not (
        is_there(entry, stock, torch) or (stock.status.is_finding and seen_elsewhere(entry, torch))
    ):
        return Condition.UNSHOWN, f"torch as it is shows {_said(stock)}, not {entry.signature}"
    if mend.kind == "signature":
        if mend.is_told_by(stock.signature):
            return Condition.OK, ""
        return Condition.UNSHOWN, "its signature is none of its cause"
    for names, what in (((entry.cause,), "its mend"), (mends, "all mends")):
        seen = _run(world, entry, names)
        if seen.status.is_finding and entry.cause not in seen.tripped:
            return Condition.UNSHOWN, f"with {what}, torch shows {_said(seen)}"
        if seen.status is Status.INFRA:
            return Condition.UNSHOWN, seen.message
        if mend.kind == "tripwire" and entry.cause not in seen.tripped:
            return Condition.UNSHOWN, f"with {what}, nothing is tripped"
    return Condition.OK, ""


def _run(world: Runner, entry: CorpusEntry, mends: tuple[str, ...] = ()) -> Verdict:
    """One run; where ranks were lost, a second one."""
    verdict = world.run(entry.case, mends=mends)
    return world.run(entry.case, mends=mends) if verdict.status is Status.INFRA else verdict


def _said(verdict: Verdict) -> str:
    return verdict.signature or str(verdict.status)
