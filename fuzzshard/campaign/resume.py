"""Whether a campaign goes on with an earlier one in its directory, and what it takes over then,
from the journal and the saved findings.

A session that was killed, interrupted, or stopped by its machine is continued by the same command:
one with the same options, of those that decide which cases are drawn. One that ended by itself is
not (note 0014).
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fuzzshard.campaign.finding_store import is_in_work
from fuzzshard.campaign.known import CUT_OFF, NO_VERDICT, Found, Registry
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.campaign.tally import Tally
from fuzzshard.contracts import installed_torch
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
from fuzzshard.journal.history import History, SessionRow
from fuzzshard.journal.writer import SessionStart
from fuzzshard.verdict import Verdict
from fuzzshard.world.config import WorldConfig


@dataclasses.dataclass(frozen=True)
class Plan:
    """A session to come: its seeds, and the ``earlier`` sessions of its campaign, none for a new
    one.

    ``alike`` are all campaigns of the same command, the oldest first. ``note`` says why another
    campaign that did not end is not continued.
    """

    seed: int
    stream_seed: int
    stream: dict[str, Any]
    earlier: tuple[SessionRow, ...] = ()
    alike: tuple[int, ...] = ()
    note: str = ""

    @property
    def campaign(self) -> int | None:
        """The campaign that goes on."""
        return self.earlier[0].campaign if self.earlier else None

    @property
    def elapsed(self) -> float:
        """Seconds that the earlier sessions took."""
        return sum(session.elapsed for session in self.earlier)

    @property
    def quiet(self) -> float:
        """For how many of these seconds, up to the last one, nothing new came."""
        quiet = 0.0
        for session in self.earlier:
            quiet = (
                session.elapsed - session.last_new if session.last_new else quiet + session.elapsed
            )
        return quiet


def plan_session(history: History, options: CampaignOptions, config: WorldConfig) -> Plan:
    """Return what the command with ``options`` does in this directory."""
    stream = _stream(options, config)
    sessions = history.sessions()
    alike = [s for s in sessions if _same(s, stream, options.seed)]
    campaigns = tuple(dict.fromkeys(s.campaign for s in sessions if _same(s, stream, None)))
    if alike and not alike[-1].complete and not options.fresh:
        earlier = [s for s in sessions if s.campaign == alike[-1].campaign]
        seed = earlier[0].seed
        return Plan(seed, session_seed(seed, len(earlier)), stream, tuple(earlier), campaigns)
    seed = options.resolved_seed()
    left = [s for s in sessions[-1:] if not s.complete]
    note = _why_not(left[0], stream, options) if left else ""
    return Plan(seed, session_seed(seed, 0), stream, alike=campaigns, note=note)


def session_seed(seed: int, number: int) -> int:
    """Return the seed of the stream that the session of this ``number`` in its campaign draws."""
    if number == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")


def start_of(
    plan: Plan, options: CampaignOptions, configs: tuple[WorldConfig, ...]
) -> SessionStart:
    """Return what the journal notes of the session, of the worlds that it runs on."""
    limits = ("max_cases", "max_time", "max_findings", "stop_after_no_new")
    return SessionStart(
        stream=plan.stream,
        limits={name: getattr(options, name) for name in limits},
        seed=plan.seed,
        stream_seed=plan.stream_seed,
        world_size=configs[0].size,
        worlds=len(configs),
        device=configs[0].device,
        campaign=plan.campaign,
        continues=plan.earlier[-1].id if plan.earlier else None,
        elapsed_before=plan.elapsed,
    )


def _stream(options: CampaignOptions, config: WorldConfig) -> dict[str, Any]:
    """Return the options that decide which cases are drawn and what they are run on."""
    steering = options.steering
    return {
        "world_size": config.size,
        "device": config.device,
        "engines": list(steering.engines),
        **({} if steering.of_engines_alone else {"steering": list(steering.words)}),
        "preload": list(config.preload),
        "mends": options.mends,
        "extra_mends": [str(folder.resolve()) for folder in options.extra_mends],
        "torch": installed_torch(),
    }


def _same(session: SessionRow, stream: dict[str, Any], seed: int | None) -> bool:
    return session.options["stream"] == stream and seed in (None, session.seed)


def _why_not(session: SessionRow, stream: dict[str, Any], options: CampaignOptions) -> str:
    """In words, why the last session is left as it is although it did not end."""
    before = {**session.options["stream"], "seed": session.seed}
    now = {**stream, "seed": session.seed if options.seed is None else options.seed}
    changed = [
        f"{name} was {_words(before.get(name, []))} and is {_words(value)}"
        for name, value in {**{name: [] for name in before}, **now}.items()
        if before.get(name, []) != value
    ]
    why = "; ".join(changed) or "a fresh campaign was asked for"
    return f"the campaign with seed {session.seed} did not end and is not continued: {why}"


def _words(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def restore_counts(history: History, campaign: int, tally: Tally) -> int:
    """Takes over what was counted; returns the number of cases that were judged."""
    tally.counts = history.counts(campaign)
    tally.features = history.features(campaign)
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
                registry.experience.count(event.signature, event.causes)
            case _:
                pass
    for known in registry.all():
        name = known.path.name
        known.hits = hits[name] + saved[name]
        known.saved_before = name not in made


def drop_saved_suspicions(corpus: Path) -> None:
    """Removes what waited to be explained where the finding has been saved since: a kill may come
    between the two.
    """
    for folder in (corpus / UNJUDGED_FOLDER).glob("*/"):
        if (corpus / FINDINGS_FOLDER / folder.name.rpartition("-")[0]).exists():
            shutil.rmtree(folder)


def in_work(corpus: Path) -> tuple[str, ...]:
    """Return the folders of saved findings that some campaign did not get done, sorted: not shrunk
    yet, or with a script that was not run, or saved by half, or not explained. What has a cause is
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
    """Return what earlier sessions of the same command found and left undone, as it is on disk.

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
    """Return the finding in the folder ``name``, should there be work left on it."""
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
    """Return the case as it was found, with the smallest one that had the finding so far."""
    unshrunk = entry_or_none(folder / UNSHRUNK_FILE)
    case = entry.case if unshrunk is None else unshrunk.case
    verdict = Verdict(
        status=entry.status,
        findings=entry.findings,
        comparison=entry.comparison,
        notes=entry.notes,
        stacks=entry.stacks,
    )
    smaller = entry.case if entry.case != case else None
    return Found(index, case, verdict, folder, smaller)
