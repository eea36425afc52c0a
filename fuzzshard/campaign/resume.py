"""Whether a campaign goes on with an earlier one in its directory.

A session that was killed, interrupted, or stopped by its machine is continued by the same command:
one with the same options, of those that decide which cases are drawn. One that ended by itself is
not (note 0014).
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
from typing import Any

from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.journal.history import History, SessionRow
from fuzzshard.journal.writer import SessionStart
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
    """What the command with ``options`` does in this directory."""
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
    """The seed of the stream that the session of this ``number`` in its campaign draws."""
    if number == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")


def start_of(
    plan: Plan, options: CampaignOptions, configs: tuple[WorldConfig, ...]
) -> SessionStart:
    """What the journal notes of the session, of the worlds that it runs on."""
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
    """The options that decide which cases are drawn and what they are run on."""
    steering = options.steering
    return {
        "world_size": config.size,
        "device": config.device,
        "engines": list(steering.engines),
        **({} if steering.of_engines_alone else {"steering": list(steering.words)}),
        "preload": list(config.preload),
        "mends": options.mends,
        "extra_mends": [str(folder.resolve()) for folder in options.extra_mends],
        "torch": importlib.metadata.version("torch"),
    }


def _same(session: SessionRow, stream: dict[str, Any], seed: int | None) -> bool:
    return _stream_before(session) == stream and seed in (None, session.seed)


def _stream_before(session: SessionRow) -> dict[str, Any]:
    """What :func:`_stream` returned then. Earlier releases could guide the choice of cases, and a
    session that they did not guide drew as one does now.
    """
    stream: dict[str, Any] = session.options["stream"]
    return {name: value for name, value in stream.items() if (name, value) != ("guidance", "none")}


def _why_not(session: SessionRow, stream: dict[str, Any], options: CampaignOptions) -> str:
    """In words, why the last session is left as it is although it did not end."""
    before = {**_stream_before(session), "seed": session.seed}
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
