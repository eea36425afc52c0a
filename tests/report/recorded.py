"""Directories of campaigns, written by the journal's own writer from events that a test makes
up.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import Confirmation
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.events import (
    CampaignFinished,
    CaseJudged,
    CaseStarted,
    Event,
    FindingConfirmed,
    FindingFound,
    FindingSaved,
    WorldStarted,
)
from fuzzshard.journal.schema import JOURNAL_FILE, connect
from fuzzshard.journal.writer import JournalWriter, SessionStart
from fuzzshard.verdict import Status

ALWAYS = Confirmation(runs=3, reproduced=3)
FINDINGS = Path(__file__).parents[2] / "corpus" / "findings"
RESHARD = "divergence-fully_shard-registered_parameter-78029374"
LIST_GROUP = "crash-fully_shard-RuntimeError-in-_engine_run_backward-dbc5449b"
INFO = {
    "torch": "2.13.0",
    "python": "3.11",
    "device": "cpu",
    "backend": "gloo",
    "platform": "test",
}


def judged(
    status: Status = Status.PASS, *, seconds: float = 0.1, features: Sequence[str] = (), at: float
) -> list[Event]:
    """The events of one case, which began at ``at``; its features are new if no earlier case had
    them.
    """
    names = tuple(sorted(features))
    return [
        CaseStarted(index=0, elapsed=at),
        CaseJudged(
            index=0, status=status, seconds=seconds, new_features=names, elapsed=at + seconds
        ),
    ]


def finished(
    at: float, *, reason: str = "all cases were run", exit_code: int = 0
) -> CampaignFinished:
    """The end of a session."""
    return CampaignFinished(
        elapsed=at,
        reason=reason,
        exit_code=exit_code,
        seed=7,
        cases=0,
        cases_per_second=0.0,
        counts={},
        findings=(),
        unresolved=(),
        features_seen=0,
        features_total=0,
        features_unseen=(),
        complete=True,
    )


def record(
    directory: Path,
    events: Iterable[Event],
    *,
    device: str = "cpu",
    world_size: int = 2,
    worlds: int = 1,
) -> Path:
    """Writes one session into the journal of ``directory``; what is new is what no case of it had
    before.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / JOURNAL_FILE
    connection = connect(path)
    start = SessionStart(
        stream={},
        limits={},
        seed=7,
        stream_seed=7,
        world_size=world_size,
        worlds=worlds,
        device=device,
    )
    writer = JournalWriter(path, connection, start)
    writer.record(WorldStarted(info=INFO))
    features: set[str] = set()
    index = 0
    for event in events:
        match event:
            case CaseStarted():
                event = replace(event, index=index)
            case CaseJudged():
                new = tuple(name for name in event.new_features if name not in features)
                features.update(new)
                event = replace(event, index=index, new_features=new)
                index += 1
        writer.record(event)
    connection.close()
    return directory


def one_finding(
    directory: Path,
    name: str,
    signature: str,
    *,
    at: float,
    rate: Confirmation = ALWAYS,
    known: bool = False,
) -> list[Event]:
    """An entry of the corpus in ``directory``, and the events with which a campaign comes to it;
    its cause is ``known`` only where somebody has looked for it.
    """
    folder = directory / "findings" / name
    shutil.copytree(FINDINGS / name, folder)
    lifecycle = Lifecycle.FLAKY if rate.flaky else Lifecycle.OPEN
    entry = read_entry(folder / "case.json")
    cause = entry.cause if known else ""
    entry = replace(entry, confirmed=rate, lifecycle=lifecycle, issue="", cause=cause)
    (folder / "case.json").write_bytes(encode_entry(entry))
    path = str(folder)
    return [
        FindingFound(
            index=0,
            status=Status.DIVERGENCE,
            signature=signature,
            summary="wrong",
            path=path,
            elapsed=at,
        ),
        FindingConfirmed(
            signature=signature, runs=rate.runs, reproduced=rate.reproduced, elapsed=at
        ),
        FindingSaved(
            signature=signature,
            path=path,
            replay_command="",
            script="",
            script_fails=True,
            leaves_before=9,
            leaves_after=1,
            runs=rate.runs,
            reproduced=rate.reproduced,
            others=rate.others,
            shrink_evaluations=10,
            shrink_finished=True,
            elapsed=at + 1,
        ),
    ]
