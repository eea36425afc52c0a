"""What a minimal case needs, as a table."""

from __future__ import annotations

import msgspec
import pytest
from fake_campaign import INFRA, PASS, FakeWorld, divergence, make_case

from fuzzshard.campaign.reduce import confirm_and_shrink
from fuzzshard.case.case import Case, Mesh
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import Culprit, make_entry
from fuzzshard.parts.ops import Step
from fuzzshard.shrink import Budget, shrink
from fuzzshard.verdict import Verdict

FOUND = msgspec.structs.replace(make_case(5, norm=True), mesh=Mesh(replicate=2, shard=2))


@pytest.fixture(autouse=True)
def _real_shrinking(_no_shrinking: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzzshard.campaign.reduce.shrink", shrink)


def needs_a_step_and_replicas(case: Case) -> Verdict:
    if case.mesh.replicate is None:
        return PASS
    return divergence() if Step() in case.schedule else divergence("output")


def judged(verdict_of=needs_a_step_and_replicas, **options):
    return confirm_and_shrink(FakeWorld(verdict_of, []), FOUND, divergence(), **options)


def test_each_simplification_of_the_minimal_case_is_said_with_what_it_shows():
    result = judged()
    assert result.finished
    assert (
        Culprit(change="without step", outcome="divergence/fully_shard/output") in result.culprits
    )
    meshes = [culprit for culprit in result.culprits if "mesh" in culprit.change]
    assert meshes
    assert {culprit.outcome for culprit in meshes} == {"PASS"}


def test_the_table_costs_hardly_a_run_after_shrinking_has_finished():
    runs: list[Case] = []

    def verdict_of(case: Case) -> Verdict:
        runs.append(case)
        return needs_a_step_and_replicas(case)

    result = judged(verdict_of)
    alone = shrink(FOUND, lambda case: needs_a_step_and_replicas(case) == divergence())
    assert result.case == alone.case
    assert result.evaluations <= alone.evaluations + 3


def test_a_simplification_without_a_verdict_is_left_out():
    minimal = judged().case

    def verdict_of(case: Case) -> Verdict:
        return INFRA if Step() not in case.schedule else needs_a_step_and_replicas(case)

    result = judged(verdict_of)
    assert result.case == minimal
    assert not any("step" in culprit.change for culprit in result.culprits)


def test_after_a_reduction_that_was_cut_short_the_table_is_of_the_smallest_case_so_far():
    result = judged(budget=Budget(max_evaluations=2))
    assert not result.finished
    assert any("step" in culprit.change for culprit in result.culprits)


def test_the_table_is_in_the_entry(tmp_path):
    result = judged()
    info = {"torch": "2.13.0", "backend": "gloo"}
    entry = make_entry(result.case, result.verdict, info, culprits=result.culprits)
    file = tmp_path / "case.json"
    file.write_bytes(encode_entry(entry))
    assert read_entry(file).culprits == result.culprits != ()
