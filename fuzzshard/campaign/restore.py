"""What a session takes over from earlier ones of its campaign: from the journal and the saved
findings.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from fuzzshard.campaign.keep import is_in_work
from fuzzshard.campaign.known import CUT_OFF, NO_VERDICT, Found, Registry
from fuzzshard.campaign.resume import Plan
from fuzzshard.campaign.tally import Tally
from fuzzshard.corpus.codec import entry_or_none
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.store import (
    CASE_FILE,
    FINDINGS_FOLDER,
    INCONCLUSIVE_FOLDER,
    UNJUDGED_FOLDER,
    UNSHRUNK_FILE,
)
from fuzzshard.events import (
    CampaignFinished,
    CorpusLoaded,
    FindingFlaky,
    FindingFound,
    FindingSaved,
    KnownCause,
)
from fuzzshard.journal.history import History
from fuzzshard.verdict import Verdict


def restore_counts(history: History, campaign: int, tally: Tally) -> int:
    """Takes over what was counted; returns the number of cases that were judged."""
    tally.counts = history.counts(campaign)
    tally.refusals = history.refusals(campaign)
    tally.features = history.features(campaign)
    for pair in history.pairs(campaign):
        tally.pairs.add(pair)
    tally.idle_seconds = sum(session.idle for session in history.sessions(campaign))
    return tally.cases


def restore_findings(history: History, campaign: int, registry: Registry) -> None:
    """Takes over, for the findings that were loaded from the corpus, what this campaign knows of
    them.
    """
    hits = history.count_by_folder(campaign, "finding_hit")
    saved, made = Counter[str](), set[str]()
    kinds = ("finding_found", "finding_saved", "finding_flaky", "known_cause")
    for told in history.events(campaign, *kinds):
        match event := told.event:
            case FindingFound():
                made.add(Path(event.path).name)
            case FindingSaved():
                saved[Path(event.path).name] += 1
            case FindingFlaky() if Path(event.path).name in made:
                registry.count_flaky()
            case KnownCause():
                registry.count_causes(event.signature, event.causes)
            case _:
                pass
    for known in registry.all():
        name = known.path.name
        known.hits = hits[name] + saved[name]
        known.saved_before = name not in made


def in_work(corpus: Path) -> tuple[str, ...]:
    """The folders of saved findings that some campaign did not get done, sorted: not shrunk yet,
    or with a script that was not run, or saved by half, or not explained. What has a cause is
    known, and done.
    """
    places = (corpus / FINDINGS_FOLDER, corpus / UNJUDGED_FOLDER)
    files = sorted(file for place in places for file in place.glob(f"*/{UNSHRUNK_FILE}"))
    return tuple(
        file.parent.name
        for file in files
        if not (whole := file.with_name(CASE_FILE)).exists()
        or ((entry := entry_or_none(whole)) is not None and _is_left(entry))
    )


def _is_left(entry: CorpusEntry) -> bool:
    return entry.status.is_finding and not entry.cause and is_in_work(entry)


def unfinished(
    history: History,
    plan: Plan,
    corpus: Path,
    left: Collection[str],
    *,
    shrinking: bool = True,
) -> list[Found]:
    """What earlier sessions of the same command found and did not get done, as it is on disk.

    ``left`` are the folders :func:`in_work`. Those that the journal tells of come first, in the
    order in which they were found. Where the campaign goes on, those follow that it found and
    could not tell of any more: they were not there when it began. What else is in work belongs to
    others, and is left alone. Without ``shrinking``, so is what is confirmed.
    """
    found: dict[str, tuple[int, bool]] = {}
    others: set[str] = set()
    kinds = ("corpus_loaded", "finding_found", "finding_saved", "finding_flaky")
    for campaign in plan.alike:
        before = campaign != plan.campaign
        for told in history.events(campaign, *kinds, "campaign_finished"):
            match event := told.event:
                case FindingFound():
                    found[Path(event.path).name] = (event.index, before)
                case FindingSaved() | FindingFlaky():
                    found.pop(Path(event.path).name, None)
                case CampaignFinished():
                    found |= {Path(path).name: (CUT_OFF, before) for path in event.suspects}
                case CorpusLoaded() if not before:
                    others.update(event.in_work)
                case _:
                    pass
    own = [name for name in left if name not in others] if plan.campaign is not None else []
    todo = []
    for name in dict.fromkeys((*found, *own)):
        index, before = found.get(name, (CUT_OFF, False))
        if before and name not in left:
            continue  # somebody else has done it
        if (saved := _on_disk(corpus, name, index, shrinking)) is not None:
            untold = saved.untold or name not in found
            todo.append(dataclasses.replace(saved, untold=untold, before=before))
    return todo


def _on_disk(corpus: Path, name: str, index: int, shrinking: bool) -> Found | None:
    """The finding in the folder ``name``, should there be work left on it."""
    for folder in (corpus / FINDINGS_FOLDER / name, corpus / INCONCLUSIVE_FOLDER / name):
        if (entry := entry_or_none(folder / CASE_FILE)) is not None:
            is_enough = entry.unshrunk and entry.confirmed is not None and not shrinking
            return None if entry.cause or is_enough else _as_found(folder, entry, index)
    for folder in (corpus / FINDINGS_FOLDER / name, corpus / UNJUDGED_FOLDER / name):
        half = entry_or_none(folder / UNSHRUNK_FILE)
        if half is not None and not (folder / CASE_FILE).exists():
            return Found(CUT_OFF, half.case, NO_VERDICT, folder, untold=True)
    return None


def _as_found(folder: Path, entry: CorpusEntry, index: int) -> Found:
    """The case as it was found, with the smallest one that had the finding so far."""
    unshrunk = entry_or_none(folder / UNSHRUNK_FILE)
    case = entry.case if unshrunk is None else unshrunk.case
    verdict = Verdict(
        status=entry.status,
        findings=entry.findings,
        rung=entry.rung,
        notes=entry.notes,
        stacks=entry.stacks,
    )
    smaller = entry.case if entry.case != case else None
    return Found(index, case, verdict, folder, smaller)
