"""Cases around one that is given: mutants of it, and others that share its rarest features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

from fuzzshard.case.case import Case
from fuzzshard.case.features import features
from fuzzshard.case.needs import unfit_for
from fuzzshard.case.steering import Steering
from fuzzshard.errors import UsageError
from fuzzshard.mutate import KINDS, mutated
from fuzzshard.strategies import draw_cases
from fuzzshard.strategies.steered import Steered, nearest, reach

MUTANTS = 0.5
"""Of the cases, those that are mutants of the case in focus."""
_NUM_SHARED = 3
"""How many of its features the others share, where the strategies draw them together."""
_SAMPLE = 200
"""Cases drawn to see which of its features are rare."""
_DRAWS = 600
"""Draws to see which of the rarest come together."""
_TRIES = 20
"""Mutants that are made for one that is new and as asked."""
_MORE = 0.5
"""How likely a mutant is mutated again."""


def reach_near(steering: Steering, seed: int, *, world_size: int, cuda: bool) -> Steered:
    """Find first cases as :func:`reach` does; ``steering`` may have a case in focus.

    Raises :class:`UsageError` also for a case in focus that the ranks cannot run.
    """
    case = steering.focus
    if case is None:
        return reach(steering, seed, world_size=world_size, cuda=cuda)
    if case.mesh.size > world_size:
        raise UsageError(
            f"{steering.focus_name} needs {case.mesh.size} ranks, and a world has {world_size}",
            f"use --world-size {case.mesh.size} or more",
        )
    if unfit := unfit_for(case, "cuda" if cuda else "cpu"):
        raise UsageError(f"{steering.focus_name} cannot run here: {unfit}", "use another --device")
    drawn = draw_cases(seed, _SAMPLE, world_size=world_size, engines=steering.engines, cuda=cuda)
    counts = Counter(feature for other in drawn for feature in features(other))
    rarest = sorted(features(case) - steering.forbidden, key=lambda f: (counts[f], f))
    asked = tuple(rarest[:_NUM_SHARED])
    present = nearest(
        steering.requiring(asked), seed, world_size=world_size, cuda=cuda, draws=_DRAWS
    )
    as_asked = steering.allows(present)
    shared = tuple(feature for feature in asked if as_asked and feature in present)
    return reach(steering, seed, world_size=world_size, cuda=cuda, shared=shared)


def around(
    case: Case,
    drawn: Iterator[Case],
    seed: int,
    *,
    steering: Steering,
    world_size: int,
    cuda: bool,
) -> Iterator[Case]:
    """Yield the case itself, and then mutants of it and ``drawn`` ones, as many of each.

    All are as ``steering`` asks, and none comes twice.
    """
    rng = Random(f"focus/{seed}")
    given = {hash(case)}
    if steering.allows(features(case)):
        yield case
    other = next(drawn)
    while True:
        mutates = rng.random() < MUTANTS
        for _ in range(_TRIES):
            new = _mutant(rng, case, other, world_size, cuda=cuda) if mutates else next(drawn)
            if hash(new) not in given and steering.allows(features(new)):
                given.add(hash(new))
                other = other if mutates else new
                yield new
                break


def _mutant(rng: Random, case: Case, other: Case, world_size: int, *, cuda: bool) -> Case:
    """Return the case after a mutation, or after several."""
    while True:
        kind = rng.choice(list(KINDS))
        case = mutated(kind, rng, case, other, world_size, cuda=cuda) or case
        if rng.random() >= _MORE:
            return case
