"""The command prints a table for each training, or JSON, and its exit code says what was found."""

from __future__ import annotations

import importlib
import json
import time
from types import SimpleNamespace

import pytest
from command_line import fuzzshard
from user_models import mistake, model, words_of

from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING


def test_equal_trainings_are_objects_of_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    long_ago = SimpleNamespace(monotonic=lambda: time.monotonic() - 1000)
    monkeypatch.setattr(importlib.import_module("fuzzshard.commands.check"), "time", long_ago)
    assert fuzzshard("check", *words_of(model("mlp")), "--json") == EXIT_CLEAN
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [report["training"]["engine"] for report in reports] == ["fully_shard", "ddp"]
    first, second = (report["seconds"] for report in reports)
    assert first > 1000 > second  # since the command began
    assert all(report["outcome"] == "equal" for report in reports)
    assert {row["reached"] for report in reports for row in report["rows"]} == {"bitwise"}


def test_a_difference_is_printed(capsys: pytest.CaptureFixture[str]):
    words = words_of(mistake("root_not_wrapped"))
    assert fuzzshard("check", *words, "--fuzz", "all") == EXIT_FINDING
    printed, said = capsys.readouterr()
    assert "nothing is fuzzed" in said
    assert "mesh dp_shard=2, parallelize: different" in printed
    assert "first difference: gradients embedding.weight, step 0" in printed
    assert "looks like  equal to this rank's own gradient: never reduced" in printed
