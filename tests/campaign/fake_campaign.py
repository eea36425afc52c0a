"""A world without ranks, whose verdicts come from a predicate on the case; and everything around
it.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from fuzzshard.analysis.order import size_order
from fuzzshard.campaign.loop import run_campaign
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.campaign.session import Session
from fuzzshard.campaign.tools import Tools
from fuzzshard.case.case import Case, Inputs, Mesh, TensorSpec, WrapGroup
from fuzzshard.case.graph import Block, Call, Child
from fuzzshard.corpus.scripts import ScriptCheck
from fuzzshard.errors import InfraError
from fuzzshard.events import CampaignFinished, Event
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import LayerNorm
from fuzzshard.parts.ops import Backward, Forward, Step
from fuzzshard.shrink import ShrinkStep
from fuzzshard.verdict import Finding, Status, Verdict
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.spare import Spares

E = TypeVar("E", bound=Event)
WithMends = Callable[[Case, tuple[str, ...]], Verdict]

PASS = Verdict(status=Status.PASS, comparison="bitwise", seconds=0.01)
INFRA = Verdict(status=Status.INFRA, message="the machine is on fire")


def divergence(oracle: str = "gradient", *, comparison: str = "bitwise") -> Verdict:
    finding = Finding(
        oracle=oracle,
        engine="fully_shard",
        observed="2.0",
        expected="1.0",
        op=1,
        name="a.weight",
        comparison=comparison,
    )
    return Verdict(
        status=Status.DIVERGENCE, findings=(finding,), comparison=comparison, seconds=0.01
    )


def make_case(seed: int = 0, *, width: int = 4, norm: bool = False, ranks: int = 2) -> Case:
    children = [Child(name="a", module=Linear(out=width))]
    nodes = [Call(name="h0", module="a", args=("x",))]
    if norm:
        children.append(Child(name="b", module=LayerNorm()))
        nodes.append(Call(name="h1", module="b", args=("h0",)))
    return Case(
        seed=seed,
        model=Block(children=tuple(children), nodes=tuple(nodes), outputs=(nodes[-1].name,)),
        inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),)),
        mesh=Mesh(shard=ranks),
        schedule=(Forward(), Backward(), Step()),
        wrap=(WrapGroup(modules=("",)),),
    )


def numbered(case_of: Callable[[int], Case] = make_case) -> Callable[..., Iterator[Case]]:
    """A stream whose i-th case has seed i."""

    def stream(seed: int, /, **_: object) -> Iterator[Case]:
        return map(case_of, itertools.count())

    return stream


class FakeWorld:
    """The World interface; ``verdict_of`` may also look at the world, or raise.

    ``with_mends`` takes its place where torch has mends; without it they change nothing.
    """

    def __init__(
        self,
        verdict_of: Callable[[Case], Verdict],
        log: list[str],
        failing_starts: int = 0,
        with_mends: WithMends | None = None,
    ) -> None:
        self.verdict_of = verdict_of
        self.with_mends = with_mends
        self.failing_starts = failing_starts
        self.log = log
        self.pids: list[int] = []
        self.info = {
            "torch": importlib.metadata.version("torch"),
            "python": "3.11",
            "device": "cpu",
            "backend": "fake",
            "platform": "test",
        }
        self.lock = threading.Lock()

    def run(
        self, case: Case, *, deadline: float | None = None, mends: tuple[str, ...] = ()
    ) -> Verdict:
        assert self.lock.acquire(blocking=False), "a world is used from one thread at a time"
        try:
            self.log.append(f"run {case.seed} mended" if mends else f"run {case.seed}")
            if mends and self.with_mends is not None:
                return self.with_mends(case, mends)
            return self.verdict_of(case)
        finally:
            self.lock.release()

    def restart(self) -> None:
        self.log.append("restart")
        if self.log.count("restart") <= self.failing_starts:
            raise InfraError("rank 0 died while it started")

    def close(self) -> None:
        self.log.append("close")

    def __enter__(self) -> FakeWorld:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def without_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world does all that its findings need before it takes the next case, as where there is no
    room for other worlds.
    """
    monkeypatch.setattr(Session, "num_followers", 0)


@dataclasses.dataclass(frozen=True)
class FakeScriptResult:
    fails: bool
    output: str = "AssertionError: observed is not expected"


@dataclasses.dataclass
class Ran:
    """A finished campaign, and what it said."""

    code: int
    events: list[Event]
    log: list[str]

    def of(self, kind: type[E]) -> list[E]:
        return [e for e in self.events if isinstance(e, kind)]

    @property
    def finished(self) -> CampaignFinished:
        (event,) = self.of(CampaignFinished)
        return event


@dataclasses.dataclass(frozen=True)
class Shrunk:
    case: Case
    finished: bool = True


def no_shrinking(case: Case, still_fails: Callable[[Case], bool], **_: object) -> Shrunk:
    return Shrunk(case)


def shrink_seed_and_norm(
    case: Case,
    still_fails: Callable[[Case], bool],
    *,
    on_progress: Callable[[ShrinkStep], None],
    **_: object,
) -> Shrunk:
    """Two passes: the plain case, then seed 0."""
    for candidate in (make_case(case.seed), make_case(0), msgspec.structs.replace(case, seed=0)):
        if (
            candidate != case
            and still_fails(candidate)
            and size_order(candidate) < size_order(case)
        ):
            case = candidate
            on_progress(ShrinkStep("fake", case, size_order(case), 0, 0.0))
    return Shrunk(case)


def campaign(
    corpus: Path,
    verdict_of: Callable[[Case], Verdict],
    *,
    cases: Callable[..., Iterator[Case]] | None = None,
    sink: Callable[[Event], None] = lambda event: None,
    script_fails: bool = True,
    check: ScriptCheck | None = None,
    failing_starts: int = 0,
    mends: str = "off",
    with_mends: WithMends | None = None,
    **options: object,
) -> Ran:
    """Runs a campaign on fake worlds; the options are those of CampaignOptions."""
    events: list[Event] = []
    log: list[str] = []

    def deliver(event: Event) -> None:
        events.append(event)
        sink(event)

    def world(config: WorldConfig, spares: Spares) -> FakeWorld:
        return FakeWorld(verdict_of, log, failing_starts, with_mends)

    tools = Tools(
        make_world=world,
        cases=cases or numbered(),
        render=lambda case, *, signature, findings, torch_version: [f"# shows {signature}\n"],
        check=check or (lambda *_, **__: FakeScriptResult(script_fails)),
        reduce=lambda entry, script, **_: script,
    )
    asked = CampaignOptions(corpus=corpus, device="cpu", mends=mends, **options)  # type: ignore[arg-type]
    return Ran(run_campaign(asked, deliver, tools=tools), events, log)
