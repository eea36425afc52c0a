"""Whether an entry is whole: it can be read, and its script is the one that its case stands
for.
"""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Literal

from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.expectation import Expected, expected
from fuzzshard.corpus.files import read_regular
from fuzzshard.corpus.outcome import obstacle
from fuzzshard.corpus.replay import shown_path, without_path
from fuzzshard.corpus.scripts import ScriptCheck, ScriptRender, scripts_of, shown_by
from fuzzshard.corpus.store import CASE_FILE, NO_SCRIPT, SCRIPT_FILE, UNSHRUNK_FILE
from fuzzshard.errors import InvalidEntry, UsageError
from fuzzshard.reproducer.shown import Shown


class Condition(enum.StrEnum):
    """What verifying one entry says.

    ``OK``: it is whole. ``STALE``: its script is not the one that this version writes.
    ``UNSCRIPTED``: the script says why it cannot be written. ``MISSING``: there is none.
    ``INVALID``: a file cannot be read. ``UNSHOWN``: the script was run and does not show what the
    entry says, or shows what should be fixed. ``NOT_RUN``: this torch or this machine has nothing
    to show.
    """

    OK = "OK"
    STALE = "STALE"
    UNSCRIPTED = "UNSCRIPTED"
    MISSING = "MISSING"
    INVALID = "INVALID"
    UNSHOWN = "UNSHOWN"
    NOT_RUN = "NOT RUN"


@dataclasses.dataclass(frozen=True)
class Verified:
    """One entry: what to show it by, its condition, and a line of why."""

    path: Path
    condition: Condition
    message: str = ""


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
    said = shown_by(check(file.with_name(SCRIPT_FILE), entry.case.mesh.size), entry)
    if SCRIPT_FILE in entry.notes:
        return Verified(path, Condition.OK, f"{said}; the entry says: {entry.notes[SCRIPT_FILE]}")
    wrong = Expected.NOTHING if said is Shown.YES else Expected.FINDING
    condition = Condition.UNSHOWN if expected(entry, torch, device) is wrong else Condition.OK
    return Verified(path, condition, said)
