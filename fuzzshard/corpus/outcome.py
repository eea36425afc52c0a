"""Replaying one entry: is what it recorded still there?"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from fuzzshard.analysis.needs import unfit_for
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import Expected, expected, is_there
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.errors import (
    EXIT_CLEAN,
    EXIT_FINDING,
    EXIT_INCONCLUSIVE,
    EXIT_INFRA,
    EXIT_USAGE,
    FuzzshardError,
    worst_exit_code,
)
from fuzzshard.instruments import INSTRUMENTS, OFF, off_readings
from fuzzshard.mending.mend import own_mends
from fuzzshard.runner import Runner
from fuzzshard.verdict import Status, Verdict, is_excluded

UNHURRIED = 300.0
"""Seconds for a case that is expected to pass: how long others took says nothing of it."""

FLAKY_RUNS = 3
"""Runs of a flaky finding that does not say how many it had when it was found."""


class Outcome(enum.StrEnum):
    """What replaying one entry says.

    ``SAME``: the recorded finding is still there, in another release of torch perhaps in another
    function (:mod:`fuzzshard.identity`). ``WONTFIX``: it is, and is meant to stay. ``CHANGED``:
    another one is, or one where none is expected. ``FIXED``: the recorded finding is gone, on the
    kind of device that it was seen on. ``KNOWN``: nothing is expected, and mends cure the finding.
    ``PASS``: nothing is expected and nothing is wrong, or nobody knew whether the finding would be
    seen here, and it is not. ``SKIPPED``: this machine cannot run the case, or it says nothing of
    this torch, whose documentation excludes it or where what saw the finding is off.
    """

    SAME = "SAME"
    WONTFIX = "WONTFIX"
    CHANGED = "CHANGED"
    FIXED = "FIXED"
    KNOWN = "KNOWN"
    PASS = "PASS"
    INCONCLUSIVE = "INCONCLUSIVE"
    SKIPPED = "SKIPPED"
    INVALID = "INVALID"
    INFRA = "INFRA"


@dataclasses.dataclass(frozen=True)
class Replayed:
    """What one entry came to: the outcome, a line of what was seen, the verdict of the last run,
    which torch.

    Without a verdict nothing ran to its end.
    """

    outcome: Outcome
    message: str
    verdict: Verdict | None
    torch: str


def obstacle(entry: CorpusEntry, device: Literal["cpu", "cuda"], num_ranks: int) -> str:
    """Return why this machine cannot run ``entry``; empty if it can."""
    if entry.case.mesh.size > num_ranks:
        return (
            f"the mesh ({entry.case.mesh.text()}) needs {entry.case.mesh.size} ranks, not "
            f"{num_ranks}"
        )
    if entry.device == "cuda" and device == "cpu":
        return "was found on CUDA; a CPU cannot say whether it is fixed"
    return unfit_for(entry.case, device) or ""


def by_size(
    entries: Iterable[tuple[Path, CorpusEntry]], device: Literal["cpu", "cuda"], num_ranks: int
) -> list[tuple[int, list[tuple[Path, CorpusEntry]]]]:
    """Return entries by the ranks that their meshes need, the fewest first: ranks that idle cost
    time, too.

    What this machine cannot run is with those of one rank.
    """
    sizes: dict[int, list[tuple[Path, CorpusEntry]]] = {}
    for path, entry in entries:
        size = 1 if obstacle(entry, device, num_ranks) else entry.case.mesh.size
        sizes.setdefault(size, []).append((path, entry))
    return sorted(sizes.items())


def replay_entry(
    world: Runner, entry: CorpusEntry, device: str, deadline: float | None = None
) -> Replayed:
    """Runs the case of ``entry``; a flaky finding gets as many runs as it had when it was found.

    Ranks that wait for each other where nothing or something else is expected get a second run:
    those of a machine that is busy do when a timeout of torch's store, five minutes, or the
    deadline has passed.

    Without a ``deadline`` entries with a finding get the one that the world learned, and those
    without get :data:`UNHURRIED`.
    """
    runs = 1
    if entry.lifecycle is Lifecycle.FLAKY:
        runs = entry.confirmed.runs if entry.confirmed is not None else FLAKY_RUNS
    if deadline is None and not entry.signature:
        deadline = UNHURRIED
    for number in range(1, max(runs, 1) + 1):  # noqa: B007 (the rate below says it)
        replayed = _judge(world, entry, device, deadline)
        if replayed.verdict is not None and replayed.verdict.status.is_finding:
            break
    desync = replayed.verdict is not None and replayed.verdict.signature.startswith("desync/")
    if desync and not entry.signature.startswith("desync/"):
        replayed = _judge(world, entry, device, deadline)
    if entry.flaky and entry.confirmed is not None:
        rate = f"run {number} of {runs}; recorded as {entry.confirmed.text()}"
        replayed = dataclasses.replace(replayed, message=f"{replayed.message} ({rate})")
    return replayed


def exit_code(outcomes: Iterable[Outcome]) -> int:
    """Return the worst of ``outcomes``; what was skipped judges nothing."""
    judged = (outcome for outcome in outcomes if outcome is not Outcome.SKIPPED)
    return worst_exit_code(_EXIT_CODES.get(outcome, EXIT_CLEAN) for outcome in judged)


_EXIT_CODES = {
    Outcome.SAME: EXIT_FINDING,
    Outcome.CHANGED: EXIT_FINDING,
    Outcome.INFRA: EXIT_INFRA,
    Outcome.INVALID: EXIT_USAGE,
    Outcome.INCONCLUSIVE: EXIT_INCONCLUSIVE,
}
"""Those of outcomes that are not clean."""


def _judge(world: Runner, entry: CorpusEntry, device: str, deadline: float | None) -> Replayed:
    try:
        verdict = world.run(entry.case, deadline=deadline)
    except FuzzshardError as error:
        return Replayed(Outcome.INFRA, str(error), None, world.info.get("torch", ""))
    torch = world.info["torch"]
    if verdict.status in (Status.INFRA, Status.INCONCLUSIVE):
        return Replayed(Outcome(verdict.status.value), verdict.message, verdict, torch)
    if not verdict.status.is_finding and (reason := _not_judged(entry, verdict, world.info)):
        return Replayed(Outcome.SKIPPED, reason, verdict, torch)
    judge = _with_finding if verdict.status.is_finding else _without_finding
    outcome, message = judge(entry, verdict, torch, device)
    return Replayed(outcome, message, verdict, torch)


def _not_judged(entry: CorpusEntry, verdict: Verdict, info: Mapping[str, str]) -> str:
    """Why a run without a finding says nothing about that of ``entry``; empty if it does."""
    if not entry.findings:
        return ""
    engine = entry.findings[0].engine
    note = verdict.notes.get(engine, "")
    if is_excluded(note):
        return f"{engine} is {note}"
    off = [i for i in INSTRUMENTS if i.name in off_readings(info.get(OFF, ""))]
    blind = {i.name for finding in entry.findings for i in off if i.makes(finding)}
    if all(any(i.makes(finding) for i in off) for finding in entry.findings):
        return (
            f"what saw {entry.signature} is off in torch {info['torch']}: "
            f"{', '.join(sorted(blind))}"
        )
    return ""


def _with_finding(
    entry: CorpusEntry, verdict: Verdict, torch: str, device: str
) -> tuple[Outcome, str]:
    if not is_there(entry, verdict, torch):
        return Outcome.CHANGED, f"{verdict.signature}, was {entry.signature or 'no finding'}"
    if expected(entry, torch, device) is Expected.NOTHING:
        good = ", ".join(entry.good_on)
        return (
            Outcome.CHANGED,
            f"{entry.signature} is back in torch {torch}, and was fixed{good and ' in '}{good}",
        )
    outcome = Outcome.WONTFIX if entry.lifecycle is Lifecycle.WONTFIX else Outcome.SAME
    moved = (
        f", {entry.signature} in torch {entry.torch}"
        if verdict.signature != entry.signature
        else ""
    )
    return outcome, f"{verdict.signature}{moved}"


def _mend_to_measure(entry: CorpusEntry, torch: str) -> str:
    """Asks whether torch needs the mend of a finding that is gone."""
    mend = own_mends().get(entry.cause)
    if mend is None or not mend.torch.include(torch):
        return ""
    return f"; where no entry of it is left, torch {torch} needs the mend {mend.slug} no longer"


def _without_finding(
    entry: CorpusEntry, verdict: Verdict, torch: str, device: str
) -> tuple[Outcome, str]:
    note = " (torch refuses the case)" if verdict.status is Status.REJECTED else ""
    match expected(entry, torch, device):
        case Expected.FINDING:
            said = f"{entry.signature} of torch {entry.torch} is gone in torch {torch}{note}"
            return Outcome.FIXED, said + _mend_to_measure(entry, torch)
        case Expected.NOTHING:
            return Outcome.PASS, note.strip() or verdict.message
    if entry.lifecycle is Lifecycle.FLAKY:
        return (
            Outcome.INCONCLUSIVE,
            f"{entry.signature} was seen in only some runs, and not in this one",
        )
    if entry.device != device:
        return (
            Outcome.PASS,
            f"{entry.signature} was found on {entry.device}, is not seen on {device}{note}",
        )
    return Outcome.PASS, f"{entry.signature} of torch {entry.torch} is not in torch {torch}{note}"
