"""``assert_parity`` in a test of a user's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cases import make_case
from hypothesis import HealthCheck, given, settings
from mend_files import mend_file
from msgspec.structs import replace
from verdicts import DIVERGENCE, PASS, FakeWorld

from fuzzshard import testing
from fuzzshard.case import codec
from fuzzshard.case.case import Case
from fuzzshard.doctor import PLANTED_FAULT, clean_case
from fuzzshard.errors import InfraError, InvalidCase, UsageError
from fuzzshard.mending.mend import mends_for
from fuzzshard.strategies import cases, meshes
from fuzzshard.testing import assert_parity
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import World
from fuzzshard.world.config import WorldConfig


def judged_by(monkeypatch: pytest.MonkeyPatch, *verdicts: Verdict | BaseException) -> FakeWorld:
    world = FakeWorld(*verdicts)
    monkeypatch.setattr(testing, "_worlds", {WorldConfig(size=1): world})
    return world


@pytest.mark.slow
@settings(max_examples=3, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(case=cases(mesh=meshes(max_ranks=2), engines=("fully_shard",)))
def test_a_drawn_case_fails_if_and_only_if_a_world_finds_something(
    two_ranks: World, case: Case
) -> None:
    if two_ranks.run(case).status.is_finding:
        with pytest.raises(AssertionError):
            assert_parity(case, device="cpu")
    else:
        assert not assert_parity(case, device="cpu").findings


def test_a_fault_raises_with_the_values_the_drawing_and_the_case(tmp_path: Path) -> None:
    fault = tmp_path / "fault.py"
    fault.write_text(PLANTED_FAULT.read_text())
    with pytest.raises(AssertionError) as caught:
        assert_parity(clean_case(2), device="cpu", preload=[fault])
    first, *_, last = str(caught.value).splitlines()
    assert first == "DIVERGENCE divergence/fully_shard/gradient"
    assert "Observed against expected" in str(caught.value)
    assert "up: Linear(4" in str(caught.value)
    assert codec.decode(last) == clean_case(2)


def test_a_finding_that_does_not_come_back_is_inconclusive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = judged_by(monkeypatch, DIVERGENCE, PASS)
    verdict = assert_parity(clean_case(2), device="cpu")
    assert (verdict.status, world.restarts) == (Status.INCONCLUSIVE, 1)


@pytest.mark.parametrize("status", [Status.PASS, Status.REJECTED, Status.INCONCLUSIVE])
def test_what_accuses_no_engine_is_returned(
    monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    case = replace(clean_case(2), dtype="float64")
    judged_by(monkeypatch, Verdict(status=status))
    assert assert_parity(case, device="cpu").status is status


def test_a_finding_that_mends_cure_does_not_fail_a_test_that_allows_known_bugs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged_by(monkeypatch, DIVERGENCE).cured_by = mends_for()[0]
    with pytest.raises(AssertionError):
        assert_parity(clean_case(2), device="cpu")
    assert assert_parity(clean_case(2), device="cpu", known=True) == DIVERGENCE


def test_a_finding_that_no_mend_cures_fails_a_test_that_allows_known_bugs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = mend_file(tmp_path, "mine", "def apply(patch): pass")
    judged_by(monkeypatch, DIVERGENCE).cured_by = str(own)
    with pytest.raises(AssertionError):
        assert_parity(clean_case(2), device="cpu", known=True)
    verdict = assert_parity(clean_case(2), device="cpu", known=True, extra_mends=[tmp_path])
    assert verdict == DIVERGENCE


def test_a_folder_without_mends_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    judged_by(monkeypatch, PASS)
    with pytest.raises(UsageError, match="has no mend"):
        assert_parity(clean_case(2), device="cpu", known=True, extra_mends=[tmp_path])


def test_failing_ranks_are_no_failure_of_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    judged_by(monkeypatch, *[Verdict(status=Status.INFRA, message="out of memory")] * 2)
    with pytest.raises(InfraError, match="out of memory"):
        assert_parity(clean_case(2), device="cpu")


def test_an_interrupt_ends_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    world = judged_by(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        assert_parity(clean_case(2), device="cpu")
    assert world.closed


def test_what_cannot_run_here_is_said_before_anything_starts() -> None:
    with pytest.raises(InvalidCase, match="64 ranks"):
        assert_parity(make_case(mesh=64), device="cpu")
    with pytest.raises(InvalidCase, match="batch must be at least 1"):
        assert_parity(
            replace(clean_case(2), inputs=replace(clean_case(2).inputs, batch=0)), device="cpu"
        )
    on_host = replace(clean_case(2), inputs=replace(clean_case(2).inputs, on_host=True))
    with pytest.raises(UsageError, match="need CUDA"):
        assert_parity(on_host, device="cpu")


def test_importing_it_imports_no_torch() -> None:
    program = (
        "import sys, fuzzshard.testing, fuzzshard.strategies; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
