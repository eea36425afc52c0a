"""Random cases under random predicates: nothing blocks, and where one starts rarely matters."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from shrinking import drawn_cases, minimal, structure

from fuzzshard.analysis.features import features
from fuzzshard.analysis.order import size_order
from fuzzshard.case.case import Case
from fuzzshard.shrink.repair import repaired
from fuzzshard.shrink.tiers import TIERS


def wanted(seed: int) -> tuple[frozenset[str], list[Case]]:
    """One to four features, and every drawn case that has them."""
    rng = random.Random(seed)
    print(f"seed {seed}")
    candidates = sorted(features(rng.choice(drawn_cases())))
    want = frozenset(rng.sample(candidates, rng.randint(1, 4)))
    return want, [case for case in drawn_cases() if want <= features(case)]


def smaller_candidates(case: Case) -> Iterator[tuple[str, Case]]:
    for each in (p for tier in TIERS for p in tier):
        for edit in each.edits(case):
            candidate = repaired(edit(case))
            if candidate is not None and size_order(candidate) < size_order(case):
                yield each.name, candidate


@pytest.mark.parametrize("seed", range(10))
def test_at_a_fixpoint_no_pass_offers_a_smaller_failing_case(seed: int) -> None:
    want, cases = wanted(seed)
    result = minimal(lambda case: want <= features(case), cases[0])
    assert [name for name, c in smaller_candidates(result.case) if want <= features(c)] == []


@pytest.mark.slow
def test_two_starting_cases_mostly_shrink_to_the_same_structure() -> None:
    same = tried = 0
    for seed in range(30):
        want, cases = wanted(seed)
        cases = [
            case for case in cases if case.mesh.size > 1
        ]  # shrinking never takes more ranks than it has
        if len(cases) < 2:
            continue
        one, other = (
            minimal(lambda case, w=want: w <= features(case), c).case
            for c in (cases[0], cases[-1])
        )
        tried += 1
        same += structure(one) == structure(other)
    assert same / tried >= 0.75


@pytest.mark.slow
def test_large_cases_shrink_in_fewer_than_150_evaluations_nearly_always() -> None:
    counts = []
    for seed in range(30):
        want, cases = wanted(seed)
        counts.append(minimal(lambda case, w=want: w <= features(case), cases[0]).evaluations)
    counts.sort()
    print(counts)
    assert counts[len(counts) // 2] <= 65
    assert counts[int(0.95 * len(counts))] < 150
