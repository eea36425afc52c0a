"""What an entry says about one torch on one kind of device, and what a new observation changes of
that.
"""

from __future__ import annotations

import enum

from msgspec.structs import replace
from packaging.version import Version

from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.lifecycle import Lifecycle, in_order, release
from fuzzshard.corpus.portable import portable_findings, portable_stacks
from fuzzshard.identity import shows
from fuzzshard.verdict import Finding, Verdict


class Expected(enum.Enum):
    """Whether the recorded finding is there: it must be, it must not be, or nobody knows."""

    FINDING = "finding"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


def expected(entry: CorpusEntry, torch: str, device: str) -> Expected:
    """Return what ``entry`` says of version ``torch`` on ``device``.

    A finding of one kind of device says nothing of the other, and one of a newer torch nothing of
    older ones. Between a release that has it and one that has not nobody knows where it went.
    """
    if not entry.signature:
        return Expected.NOTHING
    now = release(torch)
    if entry.device != device or entry.lifecycle is Lifecycle.FLAKY:
        return Expected.UNKNOWN
    if now in entry.good_on:
        return Expected.NOTHING
    if now in entry.bad_on:
        return Expected.FINDING
    looked_at = {version: version in entry.bad_on for version in (*entry.good_on, *entry.bad_on)}
    newer = [version for version in looked_at if Version(version) > Version(now)]
    older = looked_at.keys() - newer
    if newer:
        before = looked_at[max(older, key=Version)] if older else None
        if before is not looked_at[min(newer, key=Version)]:
            return Expected.UNKNOWN
        return Expected.FINDING if before else Expected.NOTHING
    return Expected.NOTHING if entry.lifecycle is Lifecycle.FIXED else Expected.FINDING


def is_there(entry: CorpusEntry, verdict: Verdict, torch: str) -> bool:
    """Return whether ``verdict`` shows the finding of ``entry`` under ``torch``
    (:mod:`fuzzshard.identity`).
    """
    return shows(verdict, entry.signature, seen_elsewhere(entry, torch))


def seen_elsewhere(entry: CorpusEntry, torch: str) -> tuple[Finding, ...]:
    """Return the findings of ``entry`` where another release than that of ``torch`` has shown
    them, else none.
    """
    return entry.findings if entry.torch and release(entry.torch) != release(torch) else ()


def with_observation(entry: CorpusEntry, torch: str, *, present: bool) -> CorpusEntry:
    """Return ``entry`` after a run under ``torch`` showed its finding, or did not.

    The newest release that was looked at decides between open and fixed. A flaky finding that
    stays away proves nothing.
    """
    if entry.lifecycle is Lifecycle.FLAKY and not present:
        return entry
    now = release(torch)
    bad, good = set(entry.bad_on) - {now}, set(entry.good_on) - {now}
    (bad if present else good).add(now)
    return with_versions(entry, bad, good)


def with_versions(entry: CorpusEntry, bad: set[str], good: set[str]) -> CorpusEntry:
    """Return ``entry`` known to be bad and good on these releases, of which the newest says
    whether it is fixed.
    """
    lifecycle = entry.lifecycle
    if lifecycle is not Lifecycle.FLAKY and bad | good:
        if max(bad | good, key=Version) in good:
            lifecycle = Lifecycle.FIXED
        elif lifecycle is Lifecycle.FIXED:
            lifecycle = Lifecycle.OPEN
    return replace(entry, lifecycle=lifecycle, bad_on=in_order(bad), good_on=in_order(good))


def with_finding(entry: CorpusEntry, verdict: Verdict, torch: str, device: str) -> CorpusEntry:
    """Return ``entry`` after its case showed another finding than the recorded one, which a note
    keeps.

    What another release has shown stays: of ``torch`` it then only says what was seen instead.
    """
    now = release(torch)
    seen = {*entry.bad_on, *entry.good_on} - {now}
    if seen:
        said = replace(entry, notes={**entry.notes, f"torch {now}": f"shows {verdict.signature}"})
        return with_versions(said, {*entry.bad_on} - {now}, {*entry.good_on} - {now})
    was = (
        f"{entry.signature} with torch {', '.join(entry.bad_on) or entry.torch}, {entry.lifecycle}"
    )
    return replace(
        entry,
        signature=verdict.signature,
        status=verdict.status,
        lifecycle=Lifecycle.OPEN,
        bad_on=(now,),
        good_on=(),
        comparison=verdict.comparison,
        torch=torch,
        device="cuda" if device == "cuda" else "cpu",
        mesh=entry.case.mesh.text(),
        confirmed=None,
        findings=portable_findings(verdict.findings),
        notes={**entry.notes, **verdict.notes, "was": was},
        stacks=portable_stacks(verdict.stacks),
    )


def known_versions(entry: CorpusEntry) -> str:
    """Return ``"bad on 2.12.0, 2.13.0, good on 2.14.0"``."""
    lists = (("bad on", entry.bad_on), ("good on", entry.good_on))
    return ", ".join(f"{name} {', '.join(versions)}" for name, versions in lists if versions)
