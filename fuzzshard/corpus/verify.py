"""Whether an entry is whole: it can be read, its script is the one that its case stands for, and
it has the cause that it names.
"""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Literal

from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry, script_digest
from fuzzshard.corpus.expectation import Expected, expected, is_there, seen_elsewhere
from fuzzshard.corpus.files import read_regular
from fuzzshard.corpus.outcome import obstacle
from fuzzshard.corpus.replay import shown_path, without_path
from fuzzshard.corpus.scripts import ScriptCheck, ScriptRender, scripts_of, shown_by
from fuzzshard.corpus.store import CASE_FILE, NO_SCRIPT, SCRIPT_FILE, UNSHRUNK_FILE
from fuzzshard.errors import InvalidEntry, UsageError
from fuzzshard.mending.mend import own_mends
from fuzzshard.mending.source import why_not
from fuzzshard.reproducer.check import ranks_needed
from fuzzshard.reproducer.shown import Shown
from fuzzshard.runner import Runner
from fuzzshard.verdict import Status, Verdict


class Condition(enum.StrEnum):
    """What verifying one entry says.

    ``OK``: it is whole. ``STALE``: its script is not the one that this version writes.
    ``UNSCRIPTED``: the script says why it cannot be written. ``MISSING``: there is none.
    ``INVALID``: a file cannot be read. ``UNSHOWN``: the script was run and does not show what the
    entry says, or shows what should be fixed. ``UNNEEDED``: the case passes without the mend that
    it names, so that another one is its cause as much. ``NOT_RUN``: this torch or this machine has
    nothing to show.
    """

    OK = "OK"
    STALE = "STALE"
    UNSCRIPTED = "UNSCRIPTED"
    MISSING = "MISSING"
    INVALID = "INVALID"
    UNSHOWN = "UNSHOWN"
    UNNEEDED = "UNNEEDED"
    NOT_RUN = "NOT RUN"


@dataclasses.dataclass(frozen=True)
class Verified:
    """One entry: what to show it by, its condition, a line of why, and the cause that was
    looked at.
    """

    path: Path
    condition: Condition
    message: str = ""
    cause: str = ""


def verify(file: Path, render: ScriptRender) -> Verified:
    """Reads the entry in ``file`` and what lies next to it; runs nothing."""
    path = shown_path(file)
    try:
        entry = read_entry(file)
        if file.name != CASE_FILE:
            return Verified(path, Condition.OK)
        if (unshrunk := file.with_name(UNSHRUNK_FILE)).exists():
            read_entry(unshrunk)
    except InvalidEntry as error:
        return Verified(path, Condition.INVALID, without_path(file, error))
    if not entry.signature:
        return Verified(path, Condition.OK)
    try:
        saved = read_regular(file.with_name(SCRIPT_FILE)).decode()
    except (OSError, UnicodeDecodeError):
        return Verified(
            path, Condition.MISSING, f"no {SCRIPT_FILE}; write it with fuzzshard repro -o"
        )
    if saved.startswith(NO_SCRIPT):
        return Verified(path, Condition.UNSCRIPTED, saved.strip().removeprefix("# "))
    if entry.reduced:
        is_same = entry.reduced == script_digest(saved)
        why = "" if is_same else f"{SCRIPT_FILE} is not the script that was reduced"
        return Verified(path, Condition.OK if is_same else Condition.STALE, why)
    try:
        is_known = saved in scripts_of(entry, render)
    except UsageError as error:
        return Verified(path, Condition.STALE, f"this version writes no script: {error.problem}")
    if not is_known:
        return Verified(
            path, Condition.STALE, f"{SCRIPT_FILE} is not a script that this version writes"
        )
    return Verified(path, Condition.OK)


def run_script(
    file: Path, check: ScriptCheck, *, torch: str, device: Literal["cpu", "cuda"], num_ranks: int
) -> Verified:
    """Runs the script of the entry in ``file``, which :func:`verify` has found readable, as a user
    would.
    """
    path, entry = shown_path(file), read_entry(file)
    if reason := obstacle(entry, device, num_ranks):
        return Verified(path, Condition.OK, f"not run: {reason}")
    script = file.with_name(SCRIPT_FILE)
    said = shown_by(check(script, ranks_needed(script.read_text())), entry)
    if SCRIPT_FILE in entry.notes:
        return Verified(path, Condition.OK, f"{said}; the entry says: {entry.notes[SCRIPT_FILE]}")
    wrong = Expected.NOTHING if said is Shown.YES else Expected.FINDING
    condition = Condition.UNSHOWN if expected(entry, torch, device) is wrong else Condition.OK
    return Verified(path, condition, said)


def verify_cause(
    world: Runner,
    path: Path,
    entry: CorpusEntry,
    device: str,
    num_ranks: int,
    mends: tuple[str, ...],
    torch: str,
) -> Verified:
    """Runs the case on ``torch`` as it is, with its own mend alone, with all ``mends``, and with
    all but its own: only the first and the last may show a finding.

    Under another release than the entry's a root may show in another way. A tripwire has to be
    tripped, and the signature of what cannot be told otherwise has to match.
    """
    condition, message = _verified(world, entry, device, num_ranks, mends, torch)
    return Verified(path, condition, message, entry.cause)


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
    if mend.kind == "mend":
        others = tuple(name for name in mends if name != entry.cause)
        if _passes(world, entry, others):
            return Condition.UNNEEDED, f"it passes with {_one_of(world, entry, others)} alone"
    return Condition.OK, ""


def _one_of(world: Runner, entry: CorpusEntry, mends: tuple[str, ...]) -> str:
    """Return one of ``mends`` with which alone the case passes, as it does with all of them; or
    the fewest that halving comes to.
    """
    while len(mends) > 1:
        middle = len(mends) // 2
        for half in (mends[:middle], mends[middle:]):
            if _passes(world, entry, half):
                mends = half
                break
        else:
            break
    return " and ".join(mends)


def _run(world: Runner, entry: CorpusEntry, mends: tuple[str, ...] = ()) -> Verdict:
    """One run; where ranks were lost, a second one."""
    verdict = world.run(entry.case, mends=mends)
    return world.run(entry.case, mends=mends) if verdict.status is Status.INFRA else verdict


def _passes(world: Runner, entry: CorpusEntry, mends: tuple[str, ...]) -> bool:
    status = _run(world, entry, mends).status
    return not status.is_finding and status is not Status.INFRA


def _said(verdict: Verdict) -> str:
    return verdict.signature or str(verdict.status)
