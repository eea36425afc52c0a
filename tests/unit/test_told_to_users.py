"""Warnings and lines that several commands print."""

from __future__ import annotations

from importlib import metadata

import pytest

from fuzzshard.contracts import installed_torch, untried_lines
from fuzzshard.contracts.contract import NEWEST_TORCH, OLDEST_TORCH
from fuzzshard.errors import UsageError
from fuzzshard.report.lines import cut


@pytest.mark.parametrize(
    "torch", [f"{OLDEST_TORCH}.0", f"{NEWEST_TORCH}.1+cpu", f"{NEWEST_TORCH}.0a0+git1"]
)
def test_a_torch_that_was_tried_needs_no_warning(torch: str) -> None:
    assert untried_lines(torch) == []


@pytest.mark.parametrize("torch", ["2.16.0", "2.16.0.dev20261124+cpu", "3.0"])
def test_a_torch_that_is_newer_than_any_that_was_tried_is_named_in_one_line(torch: str) -> None:
    (line,) = untried_lines(torch)
    assert line.startswith(f"torch {torch} is newer than {NEWEST_TORCH}")


@pytest.mark.parametrize("torch", ["2.9.0", "2.12.1+cpu"])
def test_a_torch_that_is_older_than_those_supported_is_named_in_one_line(torch: str) -> None:
    (line,) = untried_lines(torch)
    assert line.startswith(f"torch {torch} is older than {OLDEST_TORCH}")


def test_an_environment_without_torch_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(UsageError, match=r"torch is not installed.*pip install"):
        installed_torch.__wrapped__()


def test_lines_are_cut_between_words_and_keep_their_indent() -> None:
    assert cut("    one two  three", 100) == "    one two three"
    assert cut("    one two three four", 17) == "    one two ..."
