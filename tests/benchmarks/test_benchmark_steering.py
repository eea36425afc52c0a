"""The benchmark of steering, on a few cases."""

import json
import sys

import pytest
import steering

pytestmark = pytest.mark.slow


def test_at_least_half_of_the_steered_cases_are_as_wanted(monkeypatch, capsys):
    monkeypatch.setattr(steering, "WANTED", steering.WANTED[1:4])
    monkeypatch.setattr(sys, "argv", ["steering.py", "--cases", "20", "--json"])
    assert steering.main() == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 3
    for row in rows:
        assert row["steered_share"] == 1
        assert row["plain_share"] < 0.1


def test_wanted_cases_are_told_from_others():
    (case,) = steering.draw_cases(3, 1, world_size=2)
    present = steering.features(case)
    assert steering.is_wanted(case, steering.Wanted("its own", tuple(present)))
    assert not steering.is_wanted(case, steering.Wanted("excluded", (), exclude=("mesh:*",)))
    assert not steering.is_wanted(case, steering.Wanted("other", (), only=("mesh:larger",)))


@pytest.mark.parametrize("wanted", steering.WANTED, ids=lambda wanted: wanted.name)
def test_globs_of_the_benchmark_are_features(wanted):
    steering.Steering(require=wanted.require, only=wanted.only, exclude=wanted.exclude)
