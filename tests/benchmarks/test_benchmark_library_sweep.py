"""The sweep over many models ends with 1 where one of them differs."""

from __future__ import annotations

import sys

import library_sweep
import pytest

from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, UsageError
from fuzzshard.subject.report import TrainingReport
from fuzzshard.subject.subject import Subject, Training


class RecordedChecker:
    """Says that one model differs, without ranks."""

    torch = "2.15.0"
    differing = ""
    failing = ""

    def __init__(self, subject: Subject, *_: object) -> None:
        self.subject = subject

    def __enter__(self) -> RecordedChecker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, training: Training) -> TrainingReport:
        if self.subject.build == self.failing:
            raise UsageError("build raised ImportError: no operator nms", "")
        differs = self.subject.build == self.differing
        return TrainingReport(training=training, outcome="different" if differs else "equal")


@pytest.mark.parametrize("differing", ["", "b.py:build"])
def test_a_mistake_in_one_model_of_many_is_an_exit_code(
    differing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = {name: Subject(build=f"{name}.py:build", inputs="") for name in "abc"}
    monkeypatch.setattr(library_sweep, "subjects", lambda wanted: models)
    monkeypatch.setattr(library_sweep, "Checker", RecordedChecker)
    monkeypatch.setattr(RecordedChecker, "differing", differing)
    monkeypatch.setattr(sys, "argv", ["library_sweep.py", "--device", "cpu"])
    assert library_sweep.main() == (EXIT_FINDING if differing else EXIT_CLEAN)
    printed = capsys.readouterr().out
    assert "a: equal, equal" in printed
    assert ("b: different, different" in printed) == bool(differing)


def test_a_library_that_cannot_be_imported_is_said_to_be_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = {name: Subject(build=f"{name}.py:build", inputs="") for name in "abc"}
    monkeypatch.setattr(library_sweep, "subjects", lambda wanted: models)
    monkeypatch.setattr(library_sweep, "Checker", RecordedChecker)
    monkeypatch.setattr(RecordedChecker, "failing", "b.py:build")
    monkeypatch.setattr(sys, "argv", ["library_sweep.py", "--device", "cpu"])
    assert library_sweep.main() == EXIT_FINDING
    printed = capsys.readouterr().out
    assert "b: build raised ImportError: no operator nms" in printed
    assert "c: equal, equal" in printed
