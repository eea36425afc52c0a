"""The pairs of features that came up."""

from __future__ import annotations

import itertools
from random import Random

from fuzzshard.campaign.tally import Pairs


def test_it_says_of_every_pair_once_that_it_is_new() -> None:
    rng, pairs, plain = Random(3), Pairs(), set[tuple[str, str]]()
    names = [f"feature{number}" for number in range(90)]
    for _ in range(200):
        present = sorted(rng.sample(names, rng.randrange(12)))
        expected = [pair for pair in itertools.combinations(present, 2) if pair not in plain]
        plain.update(expected)
        assert list(pairs.add(present)) == expected
        assert len(pairs) == len(plain)
