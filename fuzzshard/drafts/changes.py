"""Changes of a case that make it right: what a reader of a draft asks first."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import time
from collections.abc import Callable, Iterator

from fuzzshard.case.case import Case
from fuzzshard.corpus.entry import CorpusEntry, Culprit
from fuzzshard.reproducer import body, script_like
from fuzzshard.shrink.culprits import changes, culprits, subject
from fuzzshard.verdict import Status

ENOUGH = 4
"""Changes after which a case passes that are looked for: the first ones say the most."""

MOST_LINES = 6
"""Lines that a change of a script may take out or put in, all in all: more says nothing."""


def changes_that_help(
    entry: CorpusEntry,
    status: Callable[[Case], Status],
    num_ranks: int,
    *,
    max_runs: int = 150,
    max_seconds: float = 120.0,
) -> tuple[Culprit, ...]:
    """Changes after which the case passes, one for each thing that they change, and then the
    others known.

    ``status`` runs a case on at most ``num_ranks``. Shrinking knows of simplifications only; of an
    option, another value may say more.
    """
    known = {culprit.change: culprit.outcome for culprit in entry.culprits}
    until, runs, subjects = time.monotonic() + max_seconds, 0, set[str]()

    def outcome_of(phrase: str, candidate: Case) -> str | None:
        nonlocal runs
        if subject(phrase) in subjects or candidate.mesh.size > num_ranks:
            return None
        if phrase not in known:
            if runs >= max_runs or time.monotonic() >= until:
                return None
            runs += 1
            known[phrase] = status(candidate)
        if known[phrase] != Status.PASS:
            return None
        subjects.add(subject(phrase))
        return Status.PASS

    found = tuple(itertools.islice(culprits(entry.case, outcome_of), ENOUGH))
    return (*found, *(culprit for culprit in entry.culprits if culprit not in found))


@dataclasses.dataclass(frozen=True)
class CodeChange:
    """A change of a script: its lines as a diff, and the whole script after it."""

    diff: str
    script: str


def as_code(entry: CorpusEntry, script: str) -> Iterator[CodeChange]:
    """Changes of ``script`` that stand for those after which the case of ``entry`` passes.

    A change that takes away the very op that goes wrong, or a step of the optimizer, tells
    nothing, and one of the number of ranks little.
    """
    helpful = {culprit.change for culprit in entry.culprits if culprit.outcome == Status.PASS}
    seen = set()
    for phrase, changed in changes(entry.case):
        if phrase not in helpful or changed.mesh.size != entry.case.mesh.size:
            continue
        moved = _moved(entry, changed)
        if moved is None:
            continue
        text = script_like(
            script,
            entry.case,
            changed,
            signature=entry.signature,
            findings=entry.findings,
            moved=moved,
        )
        lines = _changed_lines(script, text) if text else []
        if text and 0 < len(lines) <= MOST_LINES and tuple(lines) not in seen:
            seen.add(tuple(lines))
            yield CodeChange("\n".join(lines), text)


def _moved(entry: CorpusEntry, changed: Case) -> int | None:
    """By how many places the op at which ``entry`` goes wrong stands elsewhere in ``changed``.

    None where it is not there, other ops than those before it have changed, or nothing is trained
    any more.
    """
    index = entry.findings[0].op
    if sum(op.updates for op in changed.schedule) < sum(op.updates for op in entry.case.schedule):
        return None
    if index < 0:
        return 0
    moved = len(changed.schedule) - len(entry.case.schedule)
    same = changed.schedule[max(index + moved, 0) :] == entry.case.schedule[index:]
    return moved if same and index + moved >= 0 else None


def _changed_lines(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(body(before), body(after), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]
