"""What a session takes over from earlier ones of its campaign: from the journal and the saved
findings.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections import Counter
from pathlib import Path

from fuzzshard.campaign.keep import NOT_RUN
from fuzzshard.campaign.known import CUT_OFF, NO_VERDICT, Found, Registry
from fuzzshard.campaign.tally import Tally
from fuzzshard.corpus.codec import entry_or_none
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.lifecycle import release
from fuzzshard.corpus.store import (
    CASE_FILE,
    FINDINGS_FOLDER,
    INCONCLUSIVE_FOLDER,
    SCRIPT_FILE,
    UNSHRUNK_FILE,
)
from fuzzshard.events import (
    FindingFlaky,
    FindingFound,
    FindingSaved,
    KnownCause,
)
from fuzzshard.guidance.reached import Reached
from fuzzshard.journal.history import History
from fuzzshard.verdict import Verdict
from fuzzshard.world.config import WorldConfig


def restore_counts(history: History, campaign: int, tally: Tally, reached: Reached) -> int:
    """Takes over what was counted; returns the number of cases that were judged."""
    tally.counts = history.counts(campaign)
    tally.refusals = history.refusals(campaign)
    tally.features = history.features(campaign)
    for pair in history.pairs(campaign):
        tally.pairs.add(pair)
    tally.idle_seconds = sum(session.idle for session in history.sessions(campaign))
    reached.add(history.points(campaign))
    return tally.cases


def restore_findings(history: History, campaign: int, registry: Registry) -> None:
    """Takes over, for the findings that were loaded from the corpus, what this campaign knows of
    them.
    """
    hits = history.count_by_folder(campaign, "finding_hit")
    saved, made = Counter[str](), set[str]()
    for told in history.events(campaign, "finding_saved", "finding_flaky", "known_cause"):
        match event := told.event:
            case FindingSaved():
                name = Path(event.path).name
                saved[name] += 1
                if not event.duplicate:
                    made.add(name)
            case FindingFlaky():
                registry.count_flaky()
            case KnownCause():
                registry.count_causes(event.signature, event.causes)
            case _:
                pass
    for known in registry.all():
        name = known.path.name
        known.hits = hits[name] + saved[name]
        known.saved_before = name not in made


def unfinished(
    history: History,
    campaign: int | None,
    corpus: Path,
    config: WorldConfig,
    *,
    shrinking: bool = True,
) -> list[Found]:
    """The findings of which the journal does not have the end, as they are on disk.

    Those that it tells of ``campaign`` come first, the oldest before the others; then those that
    it does not, by name. They were not confirmed or not shrunk yet; or they were, and their
    session was cut off before it said so; or it was cut off while it saved the entry, so that the
    case is there, and its verdict is not. A campaign that begins (``campaign`` None) takes them
    over as well. Without ``shrinking``, those that are confirmed are left as they are.
    """
    found: dict[str, int] = {}
    kinds = ("finding_found", "finding_saved", "finding_flaky")
    for told in history.events(campaign, *kinds) if campaign is not None else ():
        match event := told.event:
            case FindingFound():
                found[Path(event.path).name] = event.index
            case FindingSaved() | FindingFlaky():
                found.pop(Path(event.path).name, None)
            case _:
                pass
    left = []
    for name in dict.fromkeys((*found, *_not_done(corpus, config, shrinking))):
        for folder in (corpus / FINDINGS_FOLDER / name, corpus / INCONCLUSIVE_FOLDER / name):
            if (entry := entry_or_none(folder / CASE_FILE)) is not None:
                as_found = _as_found(folder, entry, found.get(name, CUT_OFF))
                left.append(dataclasses.replace(as_found, untold=name not in found))
                break
    return left + _half_saved(corpus)


def _half_saved(corpus: Path) -> list[Found]:
    """What was being saved when the disk was full or the session killed: ``case.json`` comes
    last.
    """
    files = sorted((corpus / FINDINGS_FOLDER).glob(f"*/{UNSHRUNK_FILE}"))
    return [
        Found(CUT_OFF, entry.case, NO_VERDICT, file.parent, untold=True)
        for file in files
        if not file.with_name(CASE_FILE).exists() and (entry := entry_or_none(file)) is not None
    ]


def _is_unshrunk(entry: CorpusEntry, shrinking: bool) -> bool:
    return entry.unshrunk and (shrinking or entry.confirmed is None)


def _not_done(corpus: Path, config: WorldConfig, shrinking: bool) -> list[str]:
    """The folders of findings that were saved under these conditions, and are not shrunk yet or
    have a script that was not run yet.
    """
    torch = release(importlib.metadata.version("torch"))
    files = sorted((corpus / FINDINGS_FOLDER).glob(f"*/{UNSHRUNK_FILE}"))
    entries = {file.parent.name: entry_or_none(file.with_name(CASE_FILE)) for file in files}
    return [
        name
        for name, entry in entries.items()
        if entry is not None
        and (_is_unshrunk(entry, shrinking) or entry.notes.get(SCRIPT_FILE) == NOT_RUN)
        and entry.status.is_finding
        and entry.torch
        and release(entry.torch) == torch
        and entry.device == config.device
        and entry.preload == config.preload
    ]


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
