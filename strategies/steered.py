"""Cases that are as a campaign asks, drawn by changing the bytes of others that are.

The strategies read a case off a few hundred bytes. Of bytes at random, one in a thousand or fewer
may stand for a case with what is asked. So the stream holds on to bytes that do, redraws some of
them, and keeps the result where the case is still as asked. Redrawn bytes are as likely as those
that they replace, and so this is the Metropolis algorithm (Metropolis et al., Equation of State
Calculations by Fast Computing Machines, J. Chem. Phys. 1953): what the strategies draw often, they
draw often among the cases that are as asked too.

Which bytes the wanted features hang on is learned: those that lose them are redrawn seldom, all
others mostly (the REINFORCE rule of Williams, Simple statistical gradient-following algorithms,
Machine Learning 1992; the reward is how much was redrawn without a loss).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random

from fuzzshard.analysis.features import features
from fuzzshard.analysis.needs import unfit_for
from fuzzshard.analysis.steering import ANYTHING, Steering
from fuzzshard.case.case import Case
from fuzzshard.errors import UsageError
from fuzzshard.strategies.cases import SIZES
from fuzzshard.strategies.diverse import diverse
from fuzzshard.strategies.draw import NUM_BYTES, case_stream, draw_cases, read_case

_ENDS = tuple(itertools.accumulate(SIZES))
_SWARM = tuple(slice(at, at + 1) for at in range(SIZES[0]))
_TAPES = tuple(slice(start, end) for start, end in itertools.pairwise(_ENDS))
_GENES = (*_SWARM, *_TAPES)
"""What is redrawn at once: each byte of the swarm, whose place says which choice it makes; of the
other tapes everything, as what a byte means there depends on those before it.
"""
_WEIGHTS = (1.0,) * len(_SWARM) + (10.0,) * len(_TAPES)
"""How much of a case each of them makes up, about."""

MAX_DRAWS = 3000
"""After so many draws without a case as asked there is none: 12 seconds, or half a minute on a
slow core. Rare combinations take up to 1,500 of them (note 0035).
"""
_PROBE = 100
"""Draws at random that come first; their share is what is said of how rare a case is."""
_STARTS = 16
"""How many different cases the stream begins with, where twice the draws for the first one find
them.
"""
_ELITE = 8
"""How many of the best are kept for each of the things that are asked."""
_NUM_SHARED = 3
"""How many features of a case in focus the others share, where they are drawn together."""
_SAMPLE = 200
"""Cases drawn to see which of its features are rare."""
_DRAWS = 600
"""Draws to see which of the rarest come together."""
_STEP = 0.04
_ODDS = (0.02, 0.95)
"""How fast, and between which limits, the odds move that a part is redrawn with."""
_CHAINS = 64
"""How many cases the stream holds on to."""


@dataclasses.dataclass(frozen=True)
class Steered:
    """What drawn cases must have, and bytes from which the strategies draw such cases.

    ``shared`` are features of the case in focus that drawn cases have, too. ``starts`` are bytes
    that stand for cases as asked; ``hits`` of ``tries`` draws at random were such cases. Without
    ``starts`` nothing is asked, but perhaps for some engines.
    """

    steering: Steering = ANYTHING
    shared: tuple[str, ...] = ()
    starts: tuple[bytes, ...] = ()
    hits: int = 0
    tries: int = 0

    @property
    def drawn(self) -> Steering:
        """The steering options, and the features that cases share with the one in focus."""
        return self.steering.requiring(self.shared)

    def text(self) -> str:
        """Say what is asked and how rare that is; nothing where only engines are chosen."""
        if not self.starts:
            return ""
        shared = f", sharing {' and '.join(self.shared)}" if self.shared else ""
        asked = " ".join(self.steering.words)
        if self.hits == self.tries:
            return f"{asked}{shared}"
        share = f"{self.hits or 'none'} of {self.tries} cases drawn at random"
        return f"{asked}{shared}; {share} {'is' if self.hits == 1 else 'are'} like that"


def reach(
    steering: Steering, seed: int, *, world_size: int, cuda: bool, starts: int = _STARTS
) -> Steered:
    """Find first cases that are as asked, at most ``starts``; equal arguments find the same.

    Raises :class:`UsageError` for what no case can be, where :data:`MAX_DRAWS` draws find none,
    and for a case in focus that the ranks cannot run.
    """
    if steering.of_engines_alone:
        return Steered(steering)
    steering.check_possible(world_size=world_size, cuda=cuda)
    shared: tuple[str, ...] = ()
    if steering.focus is not None:
        _check_focus(steering, steering.focus, world_size=world_size, cuda=cuda)
        shared = _shared(steering, steering.focus, seed, world_size=world_size, cuda=cuda)
    asked = steering.requiring(shared)
    search = _Search(asked, seed, world_size=world_size, cuda=cuda)
    search.go_on(MAX_DRAWS, starts)
    if not search.starts:
        lacking = " and ".join(asked.complaints(search.nearest())) or "is one that no engine runs"
        raise UsageError(
            f"none of {MAX_DRAWS} cases drawn for {world_size} {'CUDA' if cuda else 'CPU'} ranks "
            f"is as asked: the nearest {lacking}",
            "leave something out; fuzzshard features --shares 500 says how often each comes",
        )
    return Steered(steering, shared, tuple(search.starts), search.hits, search.tries)


def _check_focus(steering: Steering, case: Case, *, world_size: int, cuda: bool) -> None:
    if case.mesh.size > world_size:
        raise UsageError(
            f"{steering.focus_name} needs {case.mesh.size} ranks, and a world has {world_size}",
            f"use --world-size {case.mesh.size} or more",
        )
    if unfit := unfit_for(case, "cuda" if cuda else "cpu"):
        raise UsageError(f"{steering.focus_name} cannot run here: {unfit}", "use another --device")


def _shared(
    steering: Steering, case: Case, seed: int, *, world_size: int, cuda: bool
) -> tuple[str, ...]:
    """Return the rarest features of the case in focus, as far as the strategies draw them
    together.
    """
    drawn = draw_cases(seed, _SAMPLE, world_size=world_size, engines=steering.engines, cuda=cuda)
    counts = Counter(feature for other in drawn for feature in features(other))
    rarest = sorted(features(case) - steering.forbidden, key=lambda f: (counts[f], f))
    asked = steering.requiring(rarest[:_NUM_SHARED])
    search = _Search(asked, seed, world_size=world_size, cuda=cuda)
    search.go_on(_DRAWS)
    present = search.nearest()
    return tuple(f for f in rarest[:_NUM_SHARED] if f in present) * steering.allows(present)


def steered_stream(
    stream_seed: int, /, *, world_size: int, steered: Steered = Steered(), cuda: bool = False
) -> Iterator[Case]:
    """Yield distinct cases that are as asked, without end; the case in focus comes first.

    Where nothing is asked, of each few cases that are drawn one comes (:mod:`.diverse`).
    """
    asked = steered.drawn
    if not steered.starts:
        drawn = case_stream(stream_seed, world_size=world_size, engines=asked.engines, cuda=cuda)
        yield from diverse(drawn)
        return
    rng = Random(f"steered/{stream_seed}")
    chains = list(steered.starts)
    genes = _Genes(rng)
    hits, tries = 1 + steered.hits, 2 + steered.tries
    seen: set[int] = set()  # hashes, as in case_stream
    focus = steered.steering.focus
    if focus is not None and steered.steering.allows(features(focus)):
        seen.add(hash(focus))
        yield focus
    while True:
        at = rng.randrange(len(chains))
        # at random more often than pays: such a case owes nothing to those before it
        at_random = rng.random() ** 2 < hits / tries
        data = rng.randbytes(NUM_BYTES) if at_random else genes.redraw(chains[at])
        case = read_case(data, world_size=world_size, engines=asked.engines, cuda=cuda)
        kept = bool(case.engines) and hash(case) not in seen and asked.allows(features(case))
        if at_random:
            hits, tries = hits + kept, tries + 1
        else:
            genes.learn(kept)
        if kept:
            seen.add(hash(case))
            if len(chains) < _CHAINS:
                chains.append(data)
            else:
                chains[at] = data
            yield case


class _Search:
    """Draws at random, and then also changes and crosses what came nearest."""

    def __init__(self, steering: Steering, seed: int, *, world_size: int, cuda: bool) -> None:
        self.starts: list[bytes] = []
        self.draws = self.first = self.hits = self.tries = 0
        self._steering, self._world_size, self._cuda = steering, world_size, cuda
        self._rng = Random(f"reach/{seed}")
        self._nearest: dict[int, list[tuple[int, bytes]]] = {}
        """By number of each thing that is asked, the best bytes that have it, with how many things
        they lack or have too much; at -1 the best of all.
        """

    def draw(self) -> None:
        """Draw once more."""
        data, at_random = self._proposal()
        case = self._case(data)
        faults = self._steering.faults(features(case))
        distance = sum(faults) + (not case.engines)
        self.draws += 1
        self.tries += at_random
        self.hits += at_random and not distance
        if not distance and data not in self.starts:
            self.first = self.first or self.draws
            self.starts.append(data)
        for number in (-1, *(i for i, fault in enumerate(faults) if not fault)):
            among = [*self._nearest.get(number, ()), (distance, data)]
            self._nearest[number] = sorted(among, key=lambda item: item[0])[:_ELITE]

    def go_on(self, max_draws: int, starts: int = _STARTS) -> None:
        """Draw until there are some cases to start with, or nothing else can be hoped for."""
        while self.draws < max_draws:
            some = bool(self.starts) and self.draws >= max(_PROBE, 2 * self.first)
            if some or len(self.starts) == starts:
                return
            self.draw()

    def nearest(self) -> frozenset[str]:
        """Return the features of the best case so far."""
        return features(self._case(self._nearest[-1][0][1]))

    def _proposal(self) -> tuple[bytes, bool]:
        """Return bytes, and whether all of them are at random."""
        rng = self._rng
        kind = rng.randrange(3) if self.draws >= _PROBE else 0
        anew = rng.randbytes(NUM_BYTES)
        if kind == 0:
            return anew, True
        one, other = (rng.choice(rng.choice(list(self._nearest.values())))[1] for _ in range(2))
        if kind == 1:
            return _mixed(one, other, [rng.random() < 0.5 for _ in _GENES]), False
        scale = rng.choice((0.5, 0.25, 0.1))
        odds = [scale**2] * len(_SWARM) + [2 * scale] * len(_TAPES)
        return _mixed(one, anew, [rng.random() < p for p in odds]), False

    def _case(self, data: bytes) -> Case:
        engines = self._steering.engines
        return read_case(data, world_size=self._world_size, engines=engines, cuda=self._cuda)


class _Genes:
    """How often each part of a case is redrawn: the more often, the less is lost by it."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._odds = [0.3] * len(_SWARM) + [0.5] * len(_TAPES)
        self._chosen = [False] * len(_GENES)
        self._mean = 0.0

    def redraw(self, data: bytes) -> bytes:
        """Return ``data`` with some of its parts drawn anew."""
        self._chosen = [self._rng.random() < odds for odds in self._odds]
        return _mixed(data, self._rng.randbytes(NUM_BYTES), self._chosen)

    def learn(self, kept: bool) -> None:
        """Take in whether the last case that was redrawn is still as asked, and a new one."""
        changed = sum(itertools.compress(_WEIGHTS, self._chosen)) / sum(_WEIGHTS)
        reward = kept * changed**2
        step = _STEP * (reward - self._mean) / (self._mean + 0.05)
        self._mean += 0.05 * (reward - self._mean)
        low, high = _ODDS
        self._odds = [
            min(high, max(low, odds + step * (chosen - odds)))
            for odds, chosen in zip(self._odds, self._chosen, strict=True)
        ]


def _mixed(data: bytes, other: bytes, chosen: Iterable[bool]) -> bytes:
    """Return ``data`` with the chosen parts of ``other``."""
    mixed = bytearray(data)
    for part in itertools.compress(_GENES, chosen):
        mixed[part] = other[part]
    return bytes(mixed)
