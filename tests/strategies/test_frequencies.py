"""How often features, pairs and triples of them are drawn. The seed is in the sample's fixture."""

import itertools
from collections import Counter

import pytest

from fuzzshard.case.features import ALL_FEATURES

RARE = {
    "mesh:1": 0.03,
    "mesh:3": 0.03,
    "leaf:attention": 0.05,
    "reuse:tied_across_groups": 0.01,
    "schedule:backward_oldest": 0.05,
    "schedule:backward_newest": 0.05,
    "schedule:step_unsynced": 0.03,
    "wrap:parameter_in_no_group": 0.04,
    "optimizer:adam": 0.05,
    "optimizer:adamw": 0.05,
}
"""Features with a bound of their own: few meshes need them, few models can have them, or engines refuse."""
COMMON = 0.08

ONE_OF = [
    ("mesh:1", "mesh:2", "mesh:3", "mesh:4", "mesh:larger"),
    ("dtype:float32", "dtype:float64"),
    ("values:gaussian", "values:dyadic"),
    ("loss:sum", "loss:dot", "loss:mean_square"),
    ("optimizer:sgd", "optimizer:adam", "optimizer:adamw"),
    ("wrap:root", "wrap:root_not_wrapped"),
    ("mesh:hsdp", "mesh:axis_of_one"),
]
"""A case has one value of each of these dimensions."""

IMPOSSIBLE = {
    ("dim:uneven", "mesh:1"): "every size is divisible by 1",
    ("dim:smaller_than_mesh", "mesh:1"): "no parameter has size 0",
    ("mesh:1", "mesh:hsdp"): "two axes larger than 1 need four ranks",
    ("mesh:2", "mesh:hsdp"): "two axes larger than 1 need four ranks",
    ("mesh:3", "mesh:hsdp"): "3 is prime",
    ("optimizer:adam", "optimizer:momentum"): "momentum is SGD's",
    ("optimizer:adamw", "optimizer:momentum"): "momentum is SGD's",
    ("dim:power_of_two", "leaf:attention"): "qkv.weight has 3 * width rows",
    ("wrap:parameter_in_no_group", "wrap:root"): "the root's group manages what no other group does",
    ("reuse:tied_across_groups", "wrap:root_not_wrapped"): "it would be used sharded: an invalid case",
    ("reuse:tied_across_groups", "wrap:parameter_in_no_group"): "the root is wrapped, so all are in groups",
}

TRIPLES = {
    ("reshard:int", "dim:uneven", "wrap:several_groups"): 0.08,
    ("optimizer:momentum", "edge:unused_output", "schedule:several_steps"): 0.02,
    ("mesh:hsdp", "schedule:no_all_reduce", "schedule:several_steps"): 0.008,
    ("checkpoint:composable", "wrap:nested", "reuse:two_forwards"): 0.01,
    ("checkpoint:wrapper", "wrap:nested", "reuse:two_forwards"): 0.01,
    ("reuse:tied_in_group", "wrap:list_group", "schedule:no_sync"): 0.01,
    ("freeze:mixed_group", "freeze:toggled_on", "schedule:microbatches"): 0.02,
    ("mesh:4", "schedule:partial_sync", "schedule:several_steps"): 0.01,
    ("edge:unused_module", "wrap:several_groups", "schedule:zero_grad_to_zero"): 0.02,
}


def impossible_pairs():
    pairs = {tuple(sorted(pair)) for pair in IMPOSSIBLE}
    return pairs | {tuple(sorted(p)) for family in ONE_OF for p in itertools.combinations(family, 2)}


def count_pairs(sample):
    return Counter(p for present in sample.features for p in itertools.combinations(sorted(present), 2))


@pytest.mark.parametrize("feature", ALL_FEATURES)
def test_every_feature_is_frequent(sample, feature):
    bound = RARE.get(feature, COMMON)
    assert sample.share(feature) >= bound, f"seed {sample.seed}: P({feature}) = {sample.share(feature):.4f}"


def test_every_pair_of_features_is_drawn(sample):
    counts = count_pairs(sample)
    possible = set(itertools.combinations(sorted(ALL_FEATURES), 2)) - impossible_pairs()
    rarest = sorted(possible, key=lambda pair: counts[pair])[:5]
    print(f"seed {sample.seed}: {len(possible)} pairs, rarest:", [(counts[p], *p) for p in rarest])
    assert not [pair for pair in possible if not counts[pair]]


def test_no_impossible_pair_is_drawn(sample):
    counts = count_pairs(sample)
    assert {pair: counts[pair] for pair in impossible_pairs() if counts[pair]} == {}


def test_nearly_every_pair_is_drawn_many_times(sample):
    counts = count_pairs(sample)
    possible = set(itertools.combinations(sorted(ALL_FEATURES), 2)) - impossible_pairs()
    assert sum(counts[pair] >= 20 for pair in possible) / len(possible) >= 0.99


@pytest.mark.parametrize(("triple", "bound"), TRIPLES.items(), ids=lambda value: str(value))
def test_conjunctions_of_three_are_drawn(sample, triple, bound):
    assert sample.share(*triple) >= bound, f"seed {sample.seed}: {sample.share(*triple):.4f}"


def test_most_triples_are_drawn_within_5000_cases(sample):
    """Counted among every second feature, without triples that hold an impossible pair."""
    impossible = impossible_pairs()
    seen = set()
    for present in sample.features:
        seen.update(itertools.combinations(sorted(present & EVERY_SECOND), 3))
    possible = [
        t
        for t in itertools.combinations(sorted(EVERY_SECOND), 3)
        if not impossible.intersection(itertools.combinations(t, 2))
    ]
    share = sum(t in seen for t in possible) / len(possible)
    print(f"seed {sample.seed}: {share:.4f} of {len(possible)} triples")
    assert share >= 0.99


EVERY_SECOND = frozenset(ALL_FEATURES[::2])
