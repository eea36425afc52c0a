"""Cases that another process draws."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading

import psutil
import pytest

from fuzzshard.campaign.drawing import drawn_cases
from fuzzshard.case.case import Case
from fuzzshard.errors import InfraError
from fuzzshard.strategies.steered import Steered, steered_stream

SETTINGS = {"world_size": 2, "steered": Steered(), "cuda": False}


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_another_process_draws_the_same_cases() -> None:
    ours, theirs = steered_stream(7, world_size=2), drawn_cases(7, **SETTINGS)
    assert list(itertools.islice(theirs, 60)) == list(itertools.islice(ours, 60))


def test_the_process_is_gone_when_nobody_wants_its_cases_any_more() -> None:
    before = children()
    cases = drawn_cases(7, **SETTINGS)
    next(cases)
    assert children() - before
    del cases
    gc.collect()
    assert children() <= before


def test_signals_that_go_to_the_whole_process_group_do_not_end_drawing() -> None:
    before = children()
    cases = drawn_cases(7, **SETTINGS)
    next(cases)
    (drawing,) = children() - before
    os.kill(drawing, signal.SIGINT)
    os.kill(drawing, signal.SIGTERM)
    assert len(list(itertools.islice(cases, 100))) == 100  # more than a pipe holds


def test_a_process_that_says_more_than_a_pipe_holds_goes_on_drawing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONVERBOSE", "1")  # every import, on stderr
    drawn: list[Case] = []
    cases = drawn_cases(7, **SETTINGS)
    drawing = threading.Thread(target=lambda: drawn.append(next(cases)), daemon=True)
    drawing.start()
    drawing.join(60)
    assert len(drawn) == 1


def test_a_process_that_dies_is_an_error_and_no_end_of_the_stream() -> None:
    before = children()
    cases = drawn_cases(7, **SETTINGS)
    next(cases)
    (drawing,) = children() - before
    psutil.Process(drawing).kill()
    with pytest.raises(InfraError, match="drawing ended: exit code -9"):
        list(cases)


def test_what_drawing_raises_is_told() -> None:
    with pytest.raises(
        InfraError, match=r"drawing ended: .*ValidationError: Expected `int`, got `str`"
    ):
        next(drawn_cases(7, **{**SETTINGS, "world_size": "two"}))
