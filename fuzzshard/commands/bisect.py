"""``fuzzshard bisect``: under which versions of torch is a finding there?"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.lifecycle import release
from fuzzshard.corpus.store import CASE_FILE, only_case, saved_script
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_INCONCLUSIVE, UsageError

if TYPE_CHECKING:
    from fuzzshard.bisect.environment import Source

Several = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]


def bisect(
    path: Path,
    /,
    *,
    good: Annotated[str, Parameter(show_default=False)] = "",
    bad: Annotated[str, Parameter(show_default=False)] = "",
    torch: Annotated[str, Parameter(show_default=False)] = "",
    cache: Path | None = None,
    runs: Annotated[int | None, Parameter(show_default=False)] = None,
    again: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    index_url: Annotated[str, Parameter(show_default=False)] = "",
    extra_index_url: Several = (),
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
    from fuzzshard.bisect.bisect import (
        Bisection,
        Result,
        Tried,
        between,
        boundaries,
        parse_versions,
        search,
    )
    from fuzzshard.bisect.environment import Source, environment, versions_of_torch
    from fuzzshard.report.busy import busy
    from fuzzshard.temporary import cache_folder

    file = only_case(path)
    entry = read_entry(file)
    _check(file, entry)
    if torch and (good or bad):
        raise UsageError("--torch is a list, and --good and --bad a search", "give one of them")
    if runs is None:
        runs = entry.confirmed.runs if entry.flaky and entry.confirmed is not None else 1
    if runs < 1:
        raise UsageError(f"{runs} runs show nothing", "use --runs 1 or more")
    source = Source(index_url, extra_index_url)
    good, bad = _one(good), _one(bad)
    cpu = entry.device == "cpu"
    wheels = functools.cache(lambda: _cpu_wheels(source) if cpu else ([], source))
    if torch:
        versions = parse_versions(torch)
    else:
        versions = between(wheels()[0] or versions_of_torch(source, cpu=cpu), good, bad)
    folder = (cache or cache_folder("bisect")).absolute()
    print(f"{entry.signature}: environments in {folder}", flush=True)

    def install(version: str) -> Path:
        listed, where = wheels()
        return environment(version, folder, where if _among(version, listed) else source)

    bisection = Bisection(file.parent, entry, install, runs, again)
    if torch:
        tries: Iterator[Tried] = map(bisection.tried, versions)
    else:
        print(f"{len(versions)} versions from {versions[0]} to {versions[-1]}", flush=True)
        said = {good: Result.GOOD, bad: Result.BAD}
        known = (
            Tried(version, said[release(version)], "as you say", known=True)
            if release(version) in said
            else bisection.known(version)
            for version in versions
        )
        tries = search(versions, filter(None, known), bisection.tried)
    width = max(map(len, versions))
    found: dict[str, Result] = {}
    with busy("looking at what is known", len(versions) if torch else None) as line:
        bisection.doing = line.now
        for tried in line.each(tries):
            found[tried.version] = tried.result
            taken = "" if tried.known else f"{tried.seconds:.0f} s"
            notes = ", ".join(filter(None, (tried.detail, taken)))
            print(f"torch {tried.version:{width}}  {tried.result:14}  {notes}", flush=True)
    print(*boundaries(found), sep="\n")
    if Result.BAD in found.values():
        return EXIT_FINDING
    return EXIT_CLEAN if Result.GOOD in found.values() else EXIT_INCONCLUSIVE


def _one(text: str) -> str:
    """The one release in ``text``, if there is any text."""
    from fuzzshard.bisect.bisect import parse_versions

    if not text:
        return ""
    first, *others = parse_versions(text)
    if others:
        raise UsageError(f"{text} is more than one version", "give one; --torch takes a list")
    return release(first)


def _among(version: str, listed: list[str]) -> bool:
    """Whether an index that has the versions ``listed`` has this one."""
    return version in listed or version in map(release, listed)


def _cpu_wheels(source: Source) -> tuple[list[str], Source]:
    """The versions that the index of wheels for the CPU has, and that index; none where the user
    names another one or it does not answer.
    """
    from fuzzshard.bisect.environment import CPU_INDEX, versions_of_torch

    if source.index_url:
        return [], source
    smaller = dataclasses.replace(source, index_url=CPU_INDEX)
    try:
        return versions_of_torch(smaller, cpu=True), smaller
    except UsageError as error:
        print(f"{CPU_INDEX}: {error.problem}; going on with the usual index", flush=True)
        return [], source


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
