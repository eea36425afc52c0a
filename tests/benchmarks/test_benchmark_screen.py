"""The benchmark of screens, on a few cases, planted bugs and entries."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import screen
from cases import ROOT, groups, make_case

pytestmark = pytest.mark.slow

FAULTS = Path(__file__).parents[1] / "planted" / "faults"
BUGS = {"not_resharded": "registration", "slightly_wrong_gradient": "grad", "no_such": "crash"}


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with a bug that a screen sees, one that it does not, and one that is missing."""
    (tmp_path / "mutants").mkdir()
    for bug in BUGS:
        if (file := FAULTS / f"{bug}.py").exists():
            shutil.copy(file, tmp_path / "mutants")
    rows = [{"id": bug, "symptom": symptom} for bug, symptom in BUGS.items()]
    (tmp_path / "INDEX.json").write_text(json.dumps(rows))
    return tmp_path


def test_a_structural_bug_is_suspected_and_a_wrong_value_is_not(planted, monkeypatch, capsys):
    asked = ["--planted", str(planted), "--max-cases", "6", "--cases", "4", "--json"]
    monkeypatch.setattr(sys, "argv", ["screen.py", *asked, "--world-size", "2"])
    assert screen.main() == 0
    result = json.loads(capsys.readouterr().out)
    outcomes = {row["id"]: row["outcome"] for row in result["planted"]}
    assert outcomes == {
        "not_resharded": "found",
        "slightly_wrong_gradient": "missed",
        "no_such": "does not apply",
    }
    assert (result["structural_recall"], result["planted_recall"]) == (1, 0.5)
    assert result["unconfirmed_share"] == 0
    assert result["cases_per_core_second"] > 0


def test_a_suspicion_without_a_fault_on_real_ranks_is_unconfirmed(two_ranks, capsys):
    console = screen.Console(file=sys.stdout)
    cases = [make_case(wrap=groups("a", "b", ROOT)), make_case(mesh=3)]
    with screen.Screen(preload=(str(FAULTS / "not_resharded.py"),)) as suspicious:
        result = screen.fresh([suspicious], two_ranks, cases, console)
    assert (result["suspicions"], result["unconfirmed"], result["confirmable_cases"]) == (2, 1, 1)
    assert result["suspicions_too_large"] == 1
