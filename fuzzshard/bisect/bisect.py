"""Binary search over releases of torch: the script of a finding runs under one after the other,
and what that says is written down.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

from fuzzshard.bisect.environment import CannotInstall
from fuzzshard.contracts.contract import OLDEST_TORCH
from fuzzshard.corpus.codec import encode_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import with_observation
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.lifecycle import in_order, release
from fuzzshard.corpus.scripts import shown_by
from fuzzshard.corpus.store import CASE_FILE, SCRIPT_FILE
from fuzzshard.errors import UsageError
from fuzzshard.reproducer.check import check, ranks_needed
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
        """Return what the entry says of a version, if that counts."""
        result = None if self.again else _known(self.entry, version)
        return Tried(version, result, "known", known=True) if result is not None else None

    def tried(self, version: str) -> Tried:
        """Return what a version says, from the entry or from a run."""
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
        run = check(script, ranks_needed(script.read_text()), python=python)
        match shown_by(run, entry):
            case Shown.YES:
                return Result.BAD, f"run {number} of {runs}" if runs > 1 else ""
            case Shown.OTHERWISE:
                outcome, detail = Result.CANNOT_RUN, last_error(run.output)
            case Shown.NO:
                pass
    return outcome, detail


JUDGED = (Result.BAD, Result.GOOD)


def search(
    versions: Sequence[str], known: Iterable[Tried], try_one: Callable[[str], Tried]
) -> Iterator[Tried]:
    """Yield what versions say, until nothing between two neighbours that differ is left to try.

    ``versions`` are oldest first. ``known`` ones are not tried; the oldest and the newest of the
    others come next, then halves. Every change is found that shows in what is known and at the
    ends: a finding that came and went between two that agree is not.
    """
    results: dict[str, Result] = {}
    for tried in known:
        results[tried.version] = tried.result
        yield tried
    while (version := _next(versions, results)) is not None:
        tried = try_one(version)
        results[version] = tried.result
        yield tried


def _next(versions: Sequence[str], results: Mapping[str, Result]) -> str | None:
    """Return a version that cannot be judged is stepped over."""
    left = [i for i, version in enumerate(versions) if version not in results]
    judged = [i for i, version in enumerate(versions) if results.get(version) in JUDGED]
    if not left:
        return None
    if not judged or left[0] < judged[0]:
        return versions[left[0]]
    if left[-1] > judged[-1]:
        return versions[left[-1]]
    for low, high in itertools.pairwise(judged):
        between = [i for i in left if low < i < high]
        if between and results[versions[low]] is not results[versions[high]]:
            return versions[between[len(between) // 2]]
    return None


def between(listed: Iterable[str], good: str, bad: str) -> list[str]:
    """Return the versions to search, oldest first: between a ``good`` and a ``bad`` one.

    Of those that are empty, ``good`` is the oldest that is supported and ``bad`` the newest.
    Raises :class:`UsageError` if there are none.
    """
    given = sorted(filter(None, (good, bad)), key=Version)
    least = Version(given[0] if good else OLDEST_TORCH)
    most = Version(given[-1]) if bad else None
    found = {
        release(version): version
        for version in listed
        if least <= Version(release(version))
        and (most is None or Version(release(version)) <= most)
    }
    if not found:
        raise UsageError(
            f"the index has no torch between {least} and {most or 'now'}",
            "give others with --good and --bad",
        )
    return sorted((found | {each: found.get(each, each) for each in given}).values(), key=Version)


def boundaries(results: Mapping[str, Result]) -> list[str]:
    """Return where the finding came and went: ``"first bad: 2.12.1 (2.12.0 is good)"``.

    Of a boundary that is not between two neighbours, the versions between that were tried and
    could not be judged are named.
    """
    results = {release(version): result for version, result in results.items()}
    in_order = sorted(results, key=Version)
    judged = [version for version in in_order if results[version] in JUDGED]
    if not judged:
        return ["no version could be judged"]
    lines = []
    for before, version in itertools.pairwise(judged):
        if results[before] is not results[version]:
            between = in_order[in_order.index(before) + 1 : in_order.index(version)]
            unknown = f"; {', '.join(between)} could not be judged" if between else ""
            words = f"{before} is {results[before]}{unknown}"
            lines.append(f"first {results[version]}: {version} ({words})")
    first, last = judged[0], judged[-1]
    if lines:
        if results[first] is Result.BAD:
            lines.insert(0, f"bad from {first} on, the oldest tried")
        return lines
    if first == last:
        return [f"{results[first]} on {first}, the only one that could be judged"]
    return [f"{results[first]} on all tried, from {first} to {last}"]


def parse_versions(text: str) -> list[str]:
    """Return ``["2.9.1", "2.10.0"]`` for ``"2.10.0,2.9.1"``; raises :class:`UsageError` for what
    is no version.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError("no version of torch is given", "write --torch 2.12.1,2.13.0")
    return list(in_order({_version(word) for word in words}))


def _version(word: str) -> str:
    """One version with the three numbers that torch's have, so that an entry names it once."""
    try:
        version = Version(word)
    except InvalidVersion:
        raise UsageError(
            f'"{word}" is no version of torch', "write versions as in --torch 2.12.1,2.13.0"
        ) from None
    whole = f"{version.major}.{version.minor}.{version.micro}"
    short = ".".join(map(str, version.release))
    return str(version) if len(version.release) > 2 else str(version).replace(short, whole, 1)
