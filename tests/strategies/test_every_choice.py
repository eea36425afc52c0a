"""Every choice comes: what no case of the sample has is drawn where it is asked for.

``fuzzshard features --shares 5000`` says how often. No test pins that: the shares change with
every new dimension.
"""

from __future__ import annotations

from collections import Counter

import pytest
from streams import reach_first
from upstream_rows import UPSTREAM_ROWS

from fuzzshard.analysis.feature_names import ON_CUDA
from fuzzshard.analysis.features import ALL_FEATURES, features
from fuzzshard.analysis.needs import needs_cpu
from fuzzshard.analysis.validate import validate
from fuzzshard.strategies import draw_cases

ONE_IN = 4000
"""A feature that fewer cases have is as good as not drawn in a campaign of a night."""


def is_reached(sample, *wanted):
    """Whether a case of the sample has all these features, or one comes where they are asked."""
    if any(present.issuperset(wanted) for present in sample.features):
        return True
    return reach_first(*wanted, seed=sample.seed) is not None


@pytest.mark.parametrize("feature", sorted(set(ALL_FEATURES) - ON_CUDA))
def test_every_feature_is_drawn(sample, feature):
    assert is_reached(sample, feature), f"seed {sample.seed}"


@pytest.mark.parametrize("row", UPSTREAM_ROWS)
def test_what_an_upstream_test_combines_is_combined(sample, row):
    assert is_reached(sample, *UPSTREAM_ROWS[row] - ON_CUDA), f"seed {sample.seed}"


def test_what_needs_cuda_is_drawn_only_for_cuda(sample, streams):
    assert ON_CUDA.isdisjoint(frozenset().union(*sample.features))
    on_cuda = streams.whole(cuda=True)
    for feature in sorted(ON_CUDA.difference(*on_cuda.values())):
        assert reach_first(feature, seed=sample.seed, cuda=True), feature
    for case in [*on_cuda][::3]:
        validate(case, sample.world_size)
        assert needs_cpu(case) is None
    assert any(needs_cpu(case) for case in sample.cases)


@pytest.mark.slow
def test_no_feature_is_as_good_as_not_drawn():
    cases = draw_cases(20261, 3 * ONE_IN, world_size=8, cuda=False)
    counts = Counter(feature for case in cases for feature in features(case))
    assert [f for f in ALL_FEATURES if f not in ON_CUDA and not counts[f]] == []
