"""The code in ``docs/check-your-own-model.md`` does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from user_models import Checked

from fuzzshard.subject.subject import Subject

PAGE = Path(__file__).parents[2] / "docs" / "check-your-own-model.md"
WRAP_THE_ROOT = "    fully_shard(model, mesh=mesh)\n"


@pytest.fixture
def train(tmp_path: Path) -> Path:
    """The file of the page, with the training step of its own, and a pipeline."""
    model, step, pipeline, _test = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "train.py"
    file.write_text(f"{model}\n\n{step}\n\n{pipeline}")
    return file


def subject(file: Path, **others: str) -> Subject:
    names = {"build": "build", "inputs": "batch", "loss": "loss", "parallelize": "apply_fsdp"}
    return Subject(**{field: f"{file}:{name}" for field, name in {**names, **others}.items()})


def test_the_model_of_the_page_is_equal(train: Path, checked: Checked):
    checked(subject(train)).require("bitwise")


def test_its_training_step_is_equal(train: Path, checked: Checked):
    checked(subject(train, train_step="train_step"), microbatches=2).require("rounding")


def test_its_pipeline_is_equal(train: Path, checked: Checked):
    pipelined = subject(train, parallelize="in_stages", train_step="pipeline_step")
    checked(pipelined, "pp=2").require("rounding")


def test_its_mistake_is_printed_as_the_page_has_it(train: Path, checked: Checked):
    code = train.read_text()
    assert code.count(WRAP_THE_ROOT) == 1
    train.write_text(code.replace(WRAP_THE_ROOT, ""))
    printed = str(checked(subject(train), steps=3)).splitlines()
    page = PAGE.read_text()
    assert "different" in printed[0]
    for line in printed[1:]:
        assert line in page or "float32" in line  # numbers are those of one machine
