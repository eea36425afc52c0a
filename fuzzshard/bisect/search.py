"""Binary search over releases: which one to try next, and where a finding came and went."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from packaging.version import InvalidVersion, Version

from fuzzshard.bisect.bisect import Result, Tried
from fuzzshard.contracts.contract import OLDEST_TORCH
from fuzzshard.corpus.lifecycle import in_order, release
from fuzzshard.errors import UsageError

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
    """A version that cannot be judged is stepped over."""
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
    Raises :class:`UsageError` where that are none.
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
    """Where the finding came and went, by release: ``"first bad: 2.12.1 (2.12.0 is good)"``.

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
    """``"2.10.0,2.9.1"`` -> ``["2.9.1", "2.10.0"]``; raises :class:`UsageError` for what is no
    version.
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
