"""Runs the script of a finding under one version of torch, and writes down what that says."""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Callable
from pathlib import Path

from fuzzshard.bisect.environment import CannotInstall
from fuzzshard.corpus.codec import encode_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import with_observation
from fuzzshard.corpus.files import write_atomic
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


@dataclasses.dataclass
class Bisection:
    """What versions say of the finding of ``entry``, which lies in ``folder``.

    ``install`` gives the Python of a version or raises :class:`CannotInstall`. A version is good
    where none of ``runs`` runs shows the finding. What one says is written into the entry at once,
    and versions that it knows are not run again, unless ``again``. ``doing`` is told what begins.
    """

    folder: Path
    entry: CorpusEntry
    install: Callable[[str], Path]
    runs: int = 1
    again: bool = False
    doing: Callable[[str], None] = lambda doing: None

    def known(self, version: str) -> Tried | None:
        """What the entry says of a version, if that counts."""
        result = None if self.again else _known(self.entry, version)
        return Tried(version, result, "known", known=True) if result is not None else None

    def tried(self, version: str) -> Tried:
        """What a version says, from the entry or from a run."""
        if (known := self.known(version)) is not None:
            return known
        began = time.monotonic()
        self.doing(f"installing torch {version}")
        try:
            python = self.install(version)
        except CannotInstall as error:
            return Tried(version, Result.CANNOT_INSTALL, str(error), time.monotonic() - began)
        self.doing(f"running the script under torch {version}")
        result, detail = _try(self.folder / SCRIPT_FILE, self.entry, python, self.runs)
        if result in (Result.BAD, Result.GOOD):
            self.entry = with_observation(self.entry, version, present=result is Result.BAD)
            write_atomic(self.folder / CASE_FILE, encode_entry(self.entry))
        return Tried(version, result, detail, time.monotonic() - began)


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
