from __future__ import annotations

import pytest
import torch
from cases import chain, make_case
from traces import difference, floats, gradient, trace

from fuzzshard.oracles.bound import Bound
from fuzzshard.oracles.compare import Difference, differences
from fuzzshard.oracles.judge import MOST_FINDINGS, agreement, tensor_findings
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.oracle import MISSING, UNEXPECTED
from fuzzshard.training.trace import Piece, Trace

KEY = gradient(1)
TIED = chain(a=Linear(out=5), b=Linear(out=5))


def findings(
    found: list[Difference], bound: Bound | None = None, comparison: str = "bitwise"
) -> list:
    return tensor_findings("ddp", found, comparison, bound, lambda d: (), rank=2)


def test_a_finding_says_where_both_sides_differ_most() -> None:
    found = difference(KEY, floats(1.0, 2.0, 3.0), floats(1.0, 2.5, 8.0))
    (finding,) = findings([found])
    assert finding.observed == "3 at [2] of [3]"
    assert finding.expected == "8 at [2] of [3]"
    assert (finding.error, finding.bound, finding.detail) == (5.0, 0.0, "")
    assert (finding.op, finding.oracle, finding.name, finding.rank) == (
        1,
        "gradient",
        "a.weight",
        2,
    )


def test_a_missing_and_an_unexpected_tensor_say_so() -> None:
    missing, unexpected = findings(
        [difference(KEY, None, floats(1.0)), difference(KEY, floats(1.0), None)]
    )
    assert (missing.detail, missing.observed) == (MISSING, "None")
    assert (unexpected.detail, unexpected.expected) == (UNEXPECTED, "None")
    assert missing.error == unexpected.error == float("inf")


def test_another_shape_is_described_by_both_shapes() -> None:
    (finding,) = findings([difference(KEY, floats(1.0), floats(1.0, 2.0))])
    assert finding.observed == "a tensor of shape [1], torch.float32"
    assert finding.expected == "a tensor of shape [2], torch.float32"


def test_only_the_first_findings_are_kept() -> None:
    assert len(findings([difference(KEY, floats(1.0), floats(2.0))] * 50)) == MOST_FINDINGS


def test_explained_differences_are_no_findings() -> None:
    bound = Bound(make_case(mesh=4), trace({KEY: floats(1.0)}))
    limit = bound.excess(difference(KEY, floats(2.0), floats(1.0)))[2]
    assert (
        findings([difference(KEY, floats(1.0 + limit / 2), floats(1.0))], bound, "bounded") == []
    )
    (finding,) = findings(
        [difference(KEY, floats(1.0 + limit * 2), floats(1.0))], bound, "bounded"
    )
    assert (finding.comparison, finding.bound, finding.detail) == ("bounded", limit, "")


def agreeing(
    engines: dict[str, Trace], reference: torch.Tensor | None
) -> dict[str, tuple[str, ...]]:
    truth = trace({KEY: reference})
    differing = {name: differences(truth, t) for name, t in engines.items()}
    return {
        name: agreement(name, {"reference": truth, **engines}, differing)(found[0])
        for name, found in differing.items()
        if found
    }


def test_an_engine_that_differs_alone_agrees_with_nobody() -> None:
    engines = {"ddp": trace({KEY: floats(1.0)}), "fully_shard": trace({KEY: floats(2.0)})}
    assert agreeing(engines, floats(1.0)) == {"fully_shard": ()}


def test_engines_that_differ_in_different_ways_do_not_agree() -> None:
    engines = {"ddp": trace({KEY: floats(3.0)}), "fully_shard": trace({KEY: floats(2.0)})}
    assert agreeing(engines, floats(1.0)) == {"ddp": (), "fully_shard": ()}


@pytest.mark.parametrize("value", [floats(2.0, 3.0, 4.0), None])
def test_engines_that_differ_in_the_same_way_name_each_other(value: torch.Tensor | None) -> None:
    engines = {name: trace({KEY: value}) for name in ("ddp", "fully_shard", "replicate")}
    assert agreeing(engines, floats(1.0, 1.0, 1.0)) == {
        "ddp": ("fully_shard", "replicate"),
        "fully_shard": ("ddp", "replicate"),
        "replicate": ("ddp", "fully_shard"),
    }


@pytest.mark.parametrize(("value", "others"), [(4.0, ("ddp",)), (5.0, ())])
def test_a_shard_agrees_with_a_whole_tensor_by_its_piece(
    value: float, others: tuple[str, ...]
) -> None:
    whole = trace({KEY: floats(2.0, 3.0, 4.0)})
    engines = {"ddp": whole, "fully_shard": trace({KEY: floats(value)}, (Piece(0, 2, 1),))}
    assert agreeing(engines, floats(1.0, 1.0, 1.0))["fully_shard"] == others


def test_a_missing_gradient_against_a_wrong_one_is_no_agreement() -> None:
    engines = {"ddp": trace({KEY: None}), "fully_shard": trace({KEY: floats(2.0)})}
    assert agreeing(engines, floats(1.0)) == {"ddp": (), "fully_shard": ()}
