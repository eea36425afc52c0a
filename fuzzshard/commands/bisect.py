"""``fuzzshard bisect``: under which versions of torch is a finding there?"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from fuzzshard.bisect.bisect import (
    Bisection,
    Result,
    Tried,
    between,
    boundaries,
    parse_versions,
    search,
)
from fuzzshard.bisect.environment import CPU_INDEX, Source, environment, versions_of_torch
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.lifecycle import release
from fuzzshard.corpus.store import CASE_FILE, only_case, saved_script
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_INCONCLUSIVE, UsageError
from fuzzshard.options import Flag, Text, Texts
from fuzzshard.report.busy import busy
from fuzzshard.temporary import cache_folder


def bisect(
    path: Path,
    /,
    *,
    good: Text = "",
    bad: Text = "",
    torch: Text = "",
    cache: Path | None = None,
    runs: Annotated[int | None, Parameter(validator=validators.Number(gte=1))] = None,
    again: Flag = False,
    index_url: Text = "",
    extra_index_url: Texts = (),
) -> int:
    """Find the release of torch that began or fixed a finding.

    This runs the script of the entry under the oldest and the newest
    release, and searches between two that differ. The releases are those
    that the package index has, from 2.13 on or between --good and --bad;
    an index of nightlies gives nightlies. Each version gets an environment
    of its own, which is kept for the next time. uv or venv and pip make it,
    which read their own variables, such as PIP_CONSTRAINT. Results are written
    into the entry at once (bad_on, good_on; the newest version decides between
    open and fixed), so an interrupted search continues where it stopped. If a
    flaky finding does not show, nothing is written.

    Exit code 1: some version shows the finding; 0: none does; 3: none
    could be judged.

    Findings on the CPU use CPU wheels (200 MB for each version), those on
    CUDA the wheels of PyPI (5 GB for each version).

    For example:
      fuzzshard bisect corpus/findings/NAME
      fuzzshard bisect corpus/findings/NAME --good 2.13.0 --bad 2.15.0
      fuzzshard bisect corpus/findings/NAME --good 2.15.0 --index-url
      https://download.pytorch.org/whl/nightly/cpu
      fuzzshard bisect corpus/findings/NAME --torch 2.13.0,2.14.1

    Parameters
    ----------
    path
        An entry.
    good
        A version that does not show it, as you say; the search is between it and --bad, or the
        newest.
    bad
        A version that shows it, as you say; the search is between --good, or the oldest, and it.
        Where --bad is older than --good, the search is for the version that fixed it.
    torch
        Versions, separated by commas: try all of them, oldest first, in place of a search.
    cache
        Where the environments are. By default below the XDG cache folder.
    runs
        Runs that a version has to pass to be good. By default 1, and for a flaky finding as many
        as confirmed it.
    again
        Also run versions that the entry knows already.
    index_url
        The package index. By default PyPI, and for a finding of the CPU
        https://download.pytorch.org/whl/cpu.
    extra_index_url
        Another index; repeat it for several.
    """
    file = only_case(path)
    entry = read_entry(file)
    _check(file, entry)
    if torch and (good or bad):
        raise UsageError("--torch is a list, and --good and --bad a search", "give one of them")
    if runs is None:
        runs = entry.confirmed.runs if entry.flaky and entry.confirmed is not None else 1
    index = _Index(Source(index_url, extra_index_url), on_cpu=entry.device == "cpu")
    good, bad = _one(good), _one(bad)
    versions = parse_versions(torch) if torch else between(index.versions(), good, bad)
    folder = (cache or cache_folder("bisect")).absolute()
    print(f"{entry.signature}: environments in {folder}", flush=True)

    def install(version: str) -> Path:
        return environment(version, folder, index.source_of(version))

    bisection = Bisection(file.parent, entry, install, runs, again)
    tries = map(bisection.tried, versions) if torch else _search(bisection, versions, good, bad)
    found: dict[str, Result] = {}
    with busy("looking at what is known", len(versions) if torch else None) as line:
        bisection.doing = line.now
        for tried in line.each(tries):
            found[tried.version] = tried.result
            print(_as_line(tried, max(map(len, versions))), flush=True)
    print(*boundaries(found), sep="\n")
    if Result.BAD in found.values():
        return EXIT_FINDING
    return EXIT_CLEAN if Result.GOOD in found.values() else EXIT_INCONCLUSIVE


def _search(bisection: Bisection, versions: Sequence[str], good: str, bad: str) -> Iterator[Tried]:
    """Return the versions as the search tries them; the user says what ``good`` and ``bad``
    show.
    """
    print(f"{len(versions)} versions from {versions[0]} to {versions[-1]}", flush=True)
    said = {good: Result.GOOD, bad: Result.BAD}
    known = (
        Tried(version, said[release(version)], "as you say", known=True)
        if release(version) in said
        else bisection.known(version)
        for version in versions
    )
    return search(versions, filter(None, known), bisection.tried)


def _as_line(tried: Tried, width: int) -> str:
    taken = "" if tried.known else f"{tried.seconds:.0f} s"
    notes = ", ".join(filter(None, (tried.detail, taken)))
    return f"torch {tried.version:{width}}  {tried.result:14}  {notes}"


def _one(text: str) -> str:
    """Return the one release in ``text``, if there is any text."""
    if not text:
        return ""
    first, *others = parse_versions(text)
    if others:
        raise UsageError(f"{text} is more than one version", "give one; --torch takes a list")
    return release(first)


@dataclasses.dataclass(frozen=True)
class _Index:
    """Where versions of torch come from: for the CPU the index of smaller wheels, where it has
    them and the user names no other.
    """

    source: Source
    on_cpu: bool

    @functools.cached_property
    def _smaller(self) -> tuple[list[str], Source]:
        """The versions that the index of wheels for the CPU has, and that index."""
        smaller = dataclasses.replace(self.source, index_url=CPU_INDEX)
        if self.source.index_url or not self.on_cpu:
            return [], self.source
        try:
            return versions_of_torch(smaller, cpu=True), smaller
        except UsageError as error:
            print(f"{CPU_INDEX}: {error.problem}; going on with the usual index", flush=True)
            return [], self.source

    def versions(self) -> list[str]:
        """Return all that there are, oldest first."""
        return self._smaller[0] or versions_of_torch(self.source, cpu=self.on_cpu)

    def source_of(self, version: str) -> Source:
        """Where ``version`` comes from."""
        listed, smaller = self._smaller
        return smaller if version in (*listed, *map(release, listed)) else self.source


def _check(file: Path, entry: CorpusEntry) -> None:
    """Raises :class:`UsageError` for what no other torch can say anything about."""
    if file.name != CASE_FILE or not entry.signature:
        raise UsageError(f"{file} is no finding of a corpus", "give an entry's folder")
    if saved_script(file) is None:
        raise UsageError(
            f"{file.parent} has no script to run", "replay it under the other version instead"
        )
    if entry.preload:
        raise UsageError(
            f"the finding was made with {', '.join(entry.preload)} preloaded",
            "bisect findings of torch only",
        )
