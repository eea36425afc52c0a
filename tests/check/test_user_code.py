"""Entries that name functions of the user's are run only where somebody allows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import fuzzshard

from fuzzshard.checking.entry import SubjectEntry, save
from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_USAGE
from fuzzshard.subject.report import Difference, TrainingReport
from fuzzshard.subject.subject import MeshShape, Subject, Training

pytest_plugins = ("pytester",)

TRAINING = """
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

Path(__file__).with_name("was_imported").touch()


def build():
    return nn.Linear(4, 2)


def batch(step, dp_rank, dp_size):
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 4, generator=generator)


def parallelize(model, mesh):
    pass
"""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A corpus with one entry: a model that is not parallelised at all."""
    file = tmp_path / "train.py"
    file.write_text(TRAINING)
    names = {"build": "build", "inputs": "batch", "parallelize": "parallelize"}
    subject = Subject(**{field: f"{file}:{name}" for field, name in names.items()})
    seen = Difference(
        kind="gradients",
        name="weight",
        step=0,
        observed="1",
        expected="2",
        looks_like="equal to this rank's own gradient: never reduced",
    )
    training = Training(mesh=MeshShape({"dp_shard": 2}), steps=1)
    report = TrainingReport(training=training, outcome="different", difference=seen)
    save(tmp_path / "corpus", SubjectEntry(subject=subject, report=report))
    return tmp_path / "corpus"


def was_imported(corpus: Path) -> bool:
    return (corpus.parent / "was_imported").exists()


def test_a_replay_does_not_run_the_users_code(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzzshard("replay", str(corpus), "--device", "cpu") == EXIT_USAGE
    assert "1 entry of your own code, and no case" in capsys.readouterr().err
    assert not was_imported(corpus)


def test_a_replay_runs_it_with_leave(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["replay", str(corpus), "--device", "cpu", "--allow-user-code"]
    assert fuzzshard(*words) == EXIT_FINDING
    assert "SAME" in capsys.readouterr().out
    mended = TRAINING.replace("    pass", "    fully_shard(model, mesh=mesh)")
    (corpus.parent / "train.py").write_text(mended)
    assert fuzzshard(*words) == EXIT_CLEAN
    assert "FIXED" in capsys.readouterr().out


def test_pytest_runs_it_with_leave(corpus: Path, pytester: pytest.Pytester) -> None:
    words = ["-p", "no:cacheprovider", "--fuzzshard-corpus", corpus, "--fuzzshard-device", "cpu"]
    pytester.runpytest_inprocess(*words).assert_outcomes(skipped=1)
    assert not was_imported(corpus)
    allowed = pytester.runpytest_inprocess(*words, "--fuzzshard-allow-user-code")
    allowed.assert_outcomes(xfailed=1)
    mended = TRAINING.replace("    pass", "    fully_shard(model, mesh=mesh)")
    (corpus.parent / "train.py").write_text(mended)
    gone = pytester.runpytest_inprocess(*words, "--fuzzshard-allow-user-code")
    gone.assert_outcomes(failed=1)
    gone.stdout.fnmatch_lines(["FIXED: different/gradients/* is gone; delete *"])
