"""The guided stream: candidates from the strategies and from mutations, of which the most novel
one is run.

Drawing a case costs a hundredth of running it, so a few are drawn for each that runs. A share of
the cases is run as it is drawn, so that what no feature describes is reached as often as the
strategies reach it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from random import Random
from typing import Literal, Protocol

from fuzzshard.case.case import Case
from fuzzshard.case.features import features
from fuzzshard.case.steering import ANYTHING, Steering
from fuzzshard.guidance.mutate import KINDS, mutated
from fuzzshard.guidance.novelty import Conjunctions, Indices, guiding_features
from fuzzshard.guidance.pool import Entry, Pool
from fuzzshard.guidance.scheduler import Scheduler

Guidance = Literal["none", "features", "coverage"]
"""What cases are chosen by: nothing, the features that they combine, or also what they reach in
torch.
"""

FRESH = "fresh"
"""The source that draws from the strategies."""
PLAIN_SHARE = 0.25
"""Of the cases, those that are run as the strategies draw them."""
CANDIDATES = 8
"""How many candidates compete for a run."""
COST_EXPONENT = 0.25
"""How much the time that a candidate takes counts against it: time is what a campaign has, and
cases what benchmarks count.
"""
MAX_IN_FLIGHT = 4096
"""Cases that wait for a verdict; one that has none by then (the campaign has dropped it) is
forgotten.
"""


@dataclasses.dataclass(frozen=True)
class Feedback:
    """What became of a case: whether it ``passed``, and how many points of torch it was first to
    reach.
    """

    case: Case
    passed: bool
    new_points: int = 0


class Learner(Protocol):
    """A stream of cases that is told what became of them."""

    def __iter__(self) -> Iterator[Case]:
        """The stream itself."""

    def __next__(self) -> Case:
        """The next case."""

    def learn(self, feedback: Feedback) -> None:
        """Takes in what became of one of its cases."""


@dataclasses.dataclass(frozen=True)
class _Candidate:
    case: Case
    present: Indices
    source: str
    parent: Entry | None = None


@dataclasses.dataclass(frozen=True)
class _Running:
    """A case that was handed out: how novel it was then, and the sources of all that competed for
    its run.
    """

    chosen: _Candidate
    novelty: float
    sources: tuple[str, ...]


class GuidedStream:
    """An endless stream of distinct cases. It depends on the seed and on what it is told when.

    Advance it and tell it from one thread. Novelty is counted when a case is handed out: whether
    it passes or is refused, trying the same again brings less.
    """

    def __init__(
        self,
        fresh: Iterator[Case],
        seed: int,
        *,
        world_size: int,
        cuda: bool = False,
        candidates: int = CANDIDATES,
        steering: Steering = ANYTHING,
    ) -> None:
        self.conjunctions = Conjunctions()
        self.pool = Pool()
        self.scheduler = Scheduler([FRESH, *KINDS])
        self._fresh = fresh
        self._rng = Random(f"guidance/{seed}")
        self._world_size = world_size
        self._cuda = cuda
        self._steering = steering
        self._num_candidates = candidates
        self._running: dict[Case, _Running] = {}
        self._mean_novelty = 0.0
        self._given: set[int] = set()

    def __iter__(self) -> Iterator[Case]:
        return self

    def __next__(self) -> Case:
        if self._rng.random() < PLAIN_SHARE:
            competing = [self._drawn()]
        else:
            competing = [self._candidate() for _ in range(self._num_candidates)]
        rarities = [self.conjunctions.rarity(each.present) for each in competing]
        scores = [
            rarity / cost(each.case) ** COST_EXPONENT
            for rarity, each in zip(rarities, competing, strict=True)
        ]
        best = scores.index(max(scores))
        chosen, novelty = competing[best], rarities[best]
        self.conjunctions.add(chosen.present)
        self._given.add(hash(chosen.case))
        self._running[chosen.case] = _Running(
            chosen, novelty, tuple(each.source for each in competing)
        )
        if len(self._running) > MAX_IN_FLIGHT:
            del self._running[next(iter(self._running))]
        return chosen.case

    def learn(self, feedback: Feedback) -> None:
        """Rewards the source of a case and its parent; a case that passed may become a parent
        itself.

        All sources that competed share the cost of the run; the one that won has what it brought
        in. Points count by their logarithm: the first cases reach thousands, and are no better for
        it.
        """
        running = self._running.pop(feedback.case, None)
        if running is None:
            return
        chosen = running.chosen
        bonus = 1 + math.log2(1 + feedback.new_points)
        novelty = running.novelty * bonus
        share = cost(chosen.case) / len(running.sources)
        for source in running.sources:
            self.scheduler.reward(source, 0.0, share)
        self.scheduler.reward(chosen.source, novelty, 0.0)
        is_novel = novelty > self._mean_novelty
        self._mean_novelty += (novelty - self._mean_novelty) / 50
        if is_novel and chosen.parent is not None:
            chosen.parent.fruitful += 1
        if is_novel and feedback.passed and not chosen.case.expect:
            self.pool.add(chosen.case, chosen.present, bonus)

    def _candidate(self) -> _Candidate:
        """From a source that the scheduler chooses; where that has nothing to offer, from the
        strategies.
        """
        source = self.scheduler.choose(self._rng) if self.pool.entries else FRESH
        if source != FRESH:
            parent, other = self._parent(), self._parent()
            case = mutated(
                source, self._rng, parent.case, other.case, self._world_size, cuda=self._cuda
            )
            if (
                case is not None
                and hash(case) not in self._given
                and self._steering.allows(features(case))
            ):
                parent.children += 1
                return _Candidate(case, guiding_features(case), source, parent)
        return self._drawn()

    def _parent(self) -> Entry:
        return self.pool.choose(self._rng, lambda entry: self.conjunctions.rarity(entry.present))

    def _drawn(self) -> _Candidate:
        case = next(case for case in self._fresh if hash(case) not in self._given)
        return _Candidate(case, guiding_features(case), FRESH)


def cost(case: Case) -> float:
    """About how long a run takes, in runs of twenty ops under one engine and the reference.

    An estimate and no clock, so that a seed gives the same campaign on any machine.
    """
    return len(case.schedule) * (1 + len(case.engines)) / 40


class Unguided:
    """The plain stream, which learns nothing."""

    def __init__(self, stream: Iterator[Case]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Case]:
        return self

    def __next__(self) -> Case:
        return next(self._stream)

    def learn(self, feedback: Feedback) -> None:
        """Nothing to learn."""


def guided(
    guidance: Guidance,
    fresh: Iterator[Case],
    seed: int,
    *,
    world_size: int,
    cuda: bool = False,
    worlds: int = 1,
    before: Iterable[Indices] = (),
    steering: Steering = ANYTHING,
) -> Learner:
    """The stream of a campaign: ``fresh`` itself, or one that chooses from it and mutates.

    With many worlds fewer candidates are drawn for each case, lest the worlds wait for them.
    ``before`` are the guiding features of cases that the campaign has run already: they are not
    novel any more. ``steering`` is what ``fresh`` follows, and what mutants must follow too.
    """
    if guidance == "none":
        return Unguided(fresh)
    candidates = max(2, min(CANDIDATES, 4 * CANDIDATES // worlds))
    stream = GuidedStream(
        fresh, seed, world_size=world_size, cuda=cuda, candidates=candidates, steering=steering
    )
    for present in before:
        stream.conjunctions.add(present)
    return stream
