"""Everything a campaign has to say, as typed events; panel, plain lines and JSONL only consume
them.

The campaign stamps ``world``, ``elapsed`` and ``time`` on every event, and delivers events one at
a time. With ``run --json`` each is a line: an object whose ``event`` names its type.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from fuzzshard.verdict import Compared, Status

SCHEMA = 1
"""The version of the events. A new event or field leaves it as it is; one that goes, or means
something else, makes it larger.
"""

Phase = Literal[
    "starting",
    "running",
    "waiting",
    "explaining",
    "confirming",
    "shrinking",
    "verifying",
    "stopped",
]
_DOING: dict[Phase, str] = {
    "starting": "starting ranks",
    "running": "running cases",
    "waiting": "waiting for a finding",
    "explaining": "explaining",
    "confirming": "confirming",
    "shrinking": "shrinking",
    "verifying": "checking the script of",
    "stopped": "stopped",
}


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all events: from which ``world``, at how many seconds into the campaign, and at
    which ``time``, in unix seconds.
    """

    world: int = 0
    elapsed: float = 0.0
    time: float = 0.0


class Continued(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign goes on with: so many ``sessions``, the last of which ended as ``ended``
    says.

    ``cases`` and ``elapsed`` count towards its limits. ``counts`` are judged cases by status,
    ``findings`` distinct ones that it made; ``unfinished`` ones are confirmed first.
    """

    sessions: int
    ended: str
    cases: int
    elapsed: float
    counts: dict[str, int]
    findings: int
    unfinished: int


class CampaignStarted(Event, frozen=True, kw_only=True, tag="campaign_started"):
    """Always the first event: the seed, the limits, and what it ``continues``.

    ``devices`` are the CUDA devices of each world. ``mends`` says which cases run on mended torch
    (both, on or off), ``mends_unfit`` which mends cannot be put on this torch, and why.
    ``steering`` is what is asked of cases, beside the engines. ``note`` says why a campaign in the
    same directory that did not end is not continued.
    """

    schema: int = SCHEMA
    version: str
    seed: int
    corpus: str
    exchange: str = ""
    world_size: int
    worlds: int
    device: str
    engines: tuple[str, ...]
    steering: str = ""
    devices: tuple[tuple[int, ...], ...] = ()
    preload: tuple[str, ...] = ()
    mends: str = "off"
    mends_unfit: dict[str, str] = {}
    max_cases: int | None = None
    max_time: float | None = None
    max_findings: int | None = None
    stop_after_no_new: float | None = None
    continues: Continued | None = None
    note: str = ""


class WorldStarted(Event, frozen=True, kw_only=True, tag="world_started"):
    """The ranks of a world are up; ``info`` has torch, python, device, backend and platform."""

    info: dict[str, str]


class PhaseChanged(Event, frozen=True, kw_only=True, tag="phase_changed"):
    """What a world is busy with from now on, or has gone on with.

    While it explains, confirms, shrinks or verifies, it is the finding with this ``signature``. A
    finding is confirmed by ``of`` runs, of which ``done`` are over; how many runs it takes to
    explain one, nobody knows before, so ``of`` is 0.
    """

    phase: Phase
    signature: str = ""
    done: int = 0
    of: int = 0

    @property
    def text(self) -> str:
        """What the world does, in words: ``"confirming divergence/ddp/gradient"``."""
        return f"{_DOING[self.phase]} {self.signature}".rstrip()


class CaseStarted(Event, frozen=True, kw_only=True, tag="case_started"):
    """A world has taken a case and is about to run it."""

    index: int


class CaseJudged(Event, frozen=True, kw_only=True, tag="case_judged"):
    """A case of the stream has its verdict. Coverage is that of the campaign so far.

    ``compared`` has each engine that was drawn; of one that was not, the comparison says why
    not, and is empty if ranks were lost.
    """

    index: int
    status: Status
    seconds: float
    signature: str = ""
    message: str = ""
    new_features: tuple[str, ...] = ()
    features_seen: int = 0
    features_total: int = 0
    compared: dict[str, Compared] = {}


class FindingFound(Event, frozen=True, kw_only=True, tag="finding_found"):
    """A finding that is not a hit of a known one. It is saved, unshrunk, at ``path``.

    An ``index`` of -1: it was saved by a session that was cut off before it could say so.
    """

    index: int
    status: Status
    signature: str
    summary: str
    path: str


class FindingHit(Event, frozen=True, kw_only=True, tag="finding_hit"):
    """A finding that the known one at ``path`` explains; its ``hits``-th such case."""

    index: int
    signature: str
    path: str
    hits: int


class KnownCause(Event, frozen=True, kw_only=True, tag="known_cause"):
    """A finding that mends cure: the names of the ``causes`` (:mod:`fuzzshard.mends`)."""

    index: int
    signature: str
    causes: tuple[str, ...]


class FindingConfirmed(Event, frozen=True, kw_only=True, tag="finding_confirmed"):
    """Fresh ranks show the same finding again, in ``reproduced`` of ``runs`` runs."""

    signature: str
    runs: int
    reproduced: int


class FindingFlaky(Event, frozen=True, kw_only=True, tag="finding_flaky"):
    """Fresh ranks show something else in all of ``runs`` runs: inconclusive, kept at ``path``."""

    signature: str
    runs: int
    observed: tuple[str, ...]
    path: str


class ShrinkProgress(Event, frozen=True, kw_only=True, tag="shrink_progress"):
    """How far shrinking is: the leaf modules of the smallest case so far, after so many runs
    (``evaluations``).

    It ends when nothing helps any more, and at the latest after ``max_evaluations`` runs or
    ``max_seconds``.
    """

    signature: str
    evaluations: int
    leaves: int
    max_evaluations: int | None = None
    max_seconds: float | None = None


class FindingSaved(Event, frozen=True, kw_only=True, tag="finding_saved"):
    """The end of the work on one finding. ``path`` is its corpus entry, ``script`` the reproducer.

    It came back in ``reproduced`` of ``runs`` runs; ``others`` counts what the rest of them
    showed. ``leaves`` counts leaf modules before and after shrinking. ``script_fails`` is what
    running the reproducer said, None if it was not run. ``duplicate``: the corpus had this very
    entry already.
    """

    signature: str
    path: str
    replay_command: str
    script: str
    script_fails: bool | None
    leaves_before: int
    leaves_after: int
    runs: int
    reproduced: int
    others: dict[str, int] = {}
    shrink_evaluations: int
    shrink_finished: bool
    duplicate: bool = False
    note: str = ""


class CorpusLoaded(Event, frozen=True, kw_only=True, tag="corpus_loaded"):
    """The campaign knows the ``known`` findings that its corpus has already.

    ``explained`` more are caused by known bugs of torch, and count as these. Work on those in the
    folders ``in_work`` is not done, and is not this campaign's.
    """

    known: int
    explained: int = 0
    in_work: tuple[str, ...] = ()


class Exchanged(Event, frozen=True, kw_only=True, tag="exchanged"):
    """What ``run --exchange`` heard: so many ``nodes`` run, this one included; they found what is
    in the folders ``learned`` of this corpus now. ``problem`` is why the exchange cannot be used,
    or an entry there not be read; findings wait for it.
    """

    nodes: int
    learned: tuple[str, ...] = ()
    problem: str = ""


class NodeChanged(Event, frozen=True, kw_only=True, tag="node_changed"):
    """Another ``node`` of the worlds is lost, and they wait for it; or it is back."""

    node: str
    is_lost: bool


class SaveFailed(Event, frozen=True, kw_only=True, tag="save_failed"):
    """A finding that could not be written to disk, whole, so that it is not lost."""

    signature: str
    problem: str
    case: msgspec.Raw


class Finishing(Event, frozen=True, kw_only=True, tag="finishing"):
    """The time is up, or somebody interrupts: no case is begun any more. ``doing`` is what still
    runs, for some seconds at most.
    """

    reason: str
    doing: tuple[str, ...]


class InfraTrouble(Event, frozen=True, kw_only=True, tag="infra_trouble"):
    """A case that could not be judged, through no fault of torch, and is saved at ``path``;
    ``in_a_row`` of them by now.
    """

    index: int
    message: str
    in_a_row: int
    path: str = ""


class KnownFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the summary: a distinct finding and the cases that it explains.

    ``new``: this campaign made it. ``internal``: no user can see it. ``rate`` says how often a
    flaky one came back.
    """

    signature: str
    path: str
    hits: int
    new: bool = True
    internal: bool = False
    rate: str = ""


class CampaignFinished(Event, frozen=True, kw_only=True, tag="campaign_finished"):
    """Always the last event, also after Ctrl-C and after an error. What it tells is of all
    sessions of the campaign.

    ``counts`` are cases by status; ``explained`` of them ran into known bugs, ``causes`` says how
    many into each, by the name of the mend;
    ``unresolved`` are the
    folders of findings that are not confirmed, shrunk or shown by their script yet, ``suspects``
    those of cases that failed and were not explained yet. It is ``complete``
    when it ended by itself; if not, the same command goes on with it.
    """

    reason: str
    exit_code: int
    seed: int
    corpus: str = ""
    torch: str = ""
    mends: str = "off"
    cases: int
    cases_per_second: float
    counts: dict[str, int]
    findings: tuple[KnownFinding, ...]
    explained: int = 0
    causes: dict[str, int] = {}
    unresolved: tuple[str, ...]
    suspects: tuple[str, ...] = ()
    features_seen: int
    features_total: int
    features_unseen: tuple[str, ...]
    complete: bool = False


AnyEvent = (
    CampaignStarted
    | WorldStarted
    | PhaseChanged
    | CaseStarted
    | CaseJudged
    | FindingFound
    | FindingHit
    | KnownCause
    | FindingConfirmed
    | FindingFlaky
    | ShrinkProgress
    | FindingSaved
    | CorpusLoaded
    | SaveFailed
    | Finishing
    | InfraTrouble
    | CampaignFinished
)
