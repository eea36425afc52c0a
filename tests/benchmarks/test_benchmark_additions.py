"""Which commits add something, and which sources they changed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from additions import additions

Commit = Callable[[str, Mapping[str, str]], None]
OP = 'class Step(op.Op, tag="step"):\n    """Steps."""\n'
LOSS = 'class Sum(Loss):\n    name, meaning = "sum", "the sum"\n'


@pytest.fixture
def commit(tmp_path: Path) -> Commit:
    """Commits files with their texts to a repository in ``tmp_path``."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)

    def run(subject: str, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
        author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        command = ["git", *author, "commit", "-qm", subject]
        subprocess.run(command, cwd=tmp_path, check=True)

    return run


def found(repository: Path) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [(a.subject, a.names, a.files) for a in additions(repository, "HEAD")]


def test_an_addition_brings_a_name_and_counts_sources_alone(commit, tmp_path):
    files = {"fuzzshard/parts/ops/step.py": OP, "strategies/schedules.py": "STEP = 1\n"}
    commit("A step", files | {"tests/test_step.py": "\n", "fuzzshard/mends/step.py": "\n"})
    commit("More steps", {"fuzzshard/parts/ops/step.py": OP + "MORE = 1\n"})
    assert found(tmp_path) == [("A step", ("step",), tuple(files))]


def test_a_feature_and_a_loss_are_names_and_so_is_a_proof_without_one(commit, tmp_path):
    commit(
        "A feature", {"fuzzshard/analysis/features.py": 'MEANINGS = {\n    "op:step": "x",\n}\n'}
    )
    commit("A loss", {"fuzzshard/parts/losses.py": LOSS})
    commit("proof: nothing new", {"fuzzshard/parts/losses.py": LOSS + "\n"})
    names = [(subject, names) for subject, names, _ in found(tmp_path)]
    assert names == [("proof: nothing new", ()), ("A loss", ("sum",)), ("A feature", ("op:step",))]


def test_a_part_that_moves_to_another_file_is_none(commit, tmp_path):
    commit("A step", {"fuzzshard/parts/ops/step.py": OP})
    commit("It moves", {"fuzzshard/parts/ops/step.py": "\n", "fuzzshard/parts/ops/all.py": OP})
    assert [subject for subject, *_ in found(tmp_path)] == ["A step"]
