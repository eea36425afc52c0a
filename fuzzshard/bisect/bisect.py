"""Runs the script of a finding under one version of torch after another."""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fuzzshard.bisect.environment import CannotInstall
from fuzzshard.corpus.atomic import write_atomic
from fuzzshard.corpus.codec import encode_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import with_observation
from fuzzshard.corpus.lifecycle import release
from fuzzshard.corpus.scripts import shown_by
from fuzzshard.corpus.store import CASE_FILE, SCRIPT_FILE
from fuzzshard.reproducer.check import check
from fuzzshard.reproducer.shown import Shown, last_error


class Result(enum.StrEnum):
    """What one version says; ``CANNOT_RUN``: the script fails there, but not as the finding
    does.
    """

    BAD = "bad"
    GOOD = "good"
    CANNOT_INSTALL = "cannot install"
    CANNOT_RUN = "cannot run"


@dataclasses.dataclass(frozen=True)
class Tried:
    """One version; ``known`` from an earlier bisection, without a run."""

    version: str
    result: Result
    detail: str = ""
    seconds: float = 0.0
    known: bool = False


def bisect(
    folder: Path,
    entry: CorpusEntry,
    versions: Iterable[str],
    install: Callable[[str], Path],
    *,
    runs: int = 1,
    again: bool = False,
) -> Iterator[Tried]:
    """Yields what every one of ``versions`` says, and writes it into the entry in ``folder``
    before.

    ``install`` gives the Python of a version or raises :class:`CannotInstall`. Versions that the
    entry knows are not run again, unless ``again``. A version is good where none of ``runs`` runs
    shows it.
    """
    for version in versions:
        if not again and (known := _known(entry, version)):
            yield Tried(version, known, "known from an earlier run", known=True)
            continue
        began = time.monotonic()
        try:
            python = install(version)
        except CannotInstall as error:
            yield Tried(version, Result.CANNOT_INSTALL, str(error), time.monotonic() - began)
            continue
        result, detail = _try(folder / SCRIPT_FILE, entry, python, runs)
        if result in (Result.BAD, Result.GOOD):
            entry = with_observation(entry, version, present=result is Result.BAD)
            write_atomic(folder / CASE_FILE, encode_entry(entry))
        yield Tried(version, result, detail, time.monotonic() - began)


def _known(entry: CorpusEntry, version: str) -> Result | None:
    now = release(version)
    if now in entry.bad_on:
        return Result.BAD
    return Result.GOOD if now in entry.good_on else None


def _try(script: Path, entry: CorpusEntry, python: Path, runs: int) -> tuple[Result, str]:
    """Up to ``runs`` runs, until one shows the finding."""
    outcome, detail = Result.GOOD, ""
    for number in range(1, runs + 1):
        run = check(script, entry.case.mesh.size, python=python)
        match shown_by(run, entry):
            case Shown.YES:
                return Result.BAD, f"run {number} of {runs}" if runs > 1 else ""
            case Shown.OTHERWISE:
                outcome, detail = Result.CANNOT_RUN, last_error(run.output)
            case Shown.NO:
                pass
    return outcome, detail
