"""Warnings and lines that several commands print."""

from __future__ import annotations

import pytest

from fuzzshard.contracts import newer_lines
from fuzzshard.contracts.contract import NEWEST_TORCH
from fuzzshard.report.lines import cut


@pytest.mark.parametrize("torch", ["2.11.0", f"{NEWEST_TORCH}.1+cpu", f"{NEWEST_TORCH}.0a0+git1"])
def test_a_torch_that_was_tried_needs_no_warning(torch: str) -> None:
    assert newer_lines(torch) == []


@pytest.mark.parametrize("torch", ["2.16.0", "2.16.0.dev20261124+cpu", "3.0"])
def test_a_torch_that_is_newer_than_any_that_was_tried_is_named_in_one_line(torch: str) -> None:
    (line,) = newer_lines(torch)
    assert line.startswith(f"torch {torch} is newer than {NEWEST_TORCH}")


def test_lines_are_cut_between_words_and_keep_their_indent() -> None:
    assert cut("    one two  three", 100) == "    one two three"
    assert cut("    one two three four", 17) == "    one two ..."
