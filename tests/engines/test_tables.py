"""The tables of what contracts of engines do not cover."""

from __future__ import annotations

import pytest
from cases import FORWARD, ROOT, chain, groups, make_case

from fuzzshard.analysis.conditions import CONDITIONS
from fuzzshard.analysis.exclusions import exclusion, rows_of
from fuzzshard.case.case import Mesh, WrapGroup
from fuzzshard.parts.engines import ENGINES
from fuzzshard.parts.leaves.experts import Experts
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Cast


@pytest.mark.parametrize("engine", ENGINES)
def test_a_row_names_features_and_conditions_that_there_are_and_a_source(engine: str) -> None:
    for row in rows_of(engine):
        assert row.terms
        assert row.says.reason
        assert row.says.source


def test_every_condition_is_in_a_table_and_few_are_no_features() -> None:
    named = {term.condition for engine in ENGINES for row in rows_of(engine) for term in row.terms}
    assert {*CONDITIONS.values()} <= named
    assert len(CONDITIONS) <= 20
    assert all(condition.__doc__ for condition in CONDITIONS.values())


def test_a_row_may_ask_for_what_a_case_lacks() -> None:
    model = chain(a=Linear(out=5), b=Linear(out=5))
    excluded = exclusion(make_case(model, wrap=groups(ROOT)), "expert_parallel")
    assert excluded is not None
    assert "needs an Experts leaf" in excluded.reason


def test_options_of_an_engine_count_where_a_case_does_not_name_it() -> None:
    case = make_case(schedule=(Cast(dtype="float64"), FORWARD), engines=("fully_shard",))
    assert exclusion(case, "fully_shard") is None
    assert exclusion(case, "ddp") is not None


@pytest.mark.parametrize("word", ["hook", "custom_gather"])
def test_collectives_of_the_user_are_excluded_beside_experts_of_another_mesh(word: str) -> None:
    case = make_case(
        chain(a=Experts(out=5, experts=2), b=Linear(out=5)),
        mesh=Mesh(replicate=2, shard=1),
        wrap=(WrapGroup(modules=(ROOT,), communication=(word,)),),
        engines=("expert_parallel",),
    )
    excluded = exclusion(case, "expert_parallel")
    assert excluded is not None
    assert "collectives of the user's" in excluded.reason
