from __future__ import annotations

import pytest
from msgspec.structs import replace
from verdicts import divergence, entry

from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import Expected, expected, with_finding, with_observation
from fuzzshard.corpus.lifecycle import Lifecycle, release

OPEN = entry(torch="2.13.0+cpu")
FIXED = replace(OPEN, lifecycle=Lifecycle.FIXED, good_on=("2.14.0",))
FLAKY = replace(OPEN, lifecycle=Lifecycle.FLAKY)
WONTFIX = replace(OPEN, lifecycle=Lifecycle.WONTFIX)


@pytest.mark.parametrize(
    ("torch", "known_as"),
    [
        ("2.13.0+cpu", "2.13.0"),
        ("2.13.0+cu126", "2.13.0"),
        ("2.13", "2.13"),
        ("2.14.0.dev20261120+cu126", "2.14.0.dev20261120"),
        ("2.14.0a0+git1f3a09b", "2.14.0a0+git1f3a09b"),
        ("2.14.0a0", "2.14.0a0"),
    ],
)
def test_builds_of_one_source_are_one_release(torch: str, known_as: str) -> None:
    assert release(torch) == known_as


@pytest.mark.parametrize(
    ("entry", "torch", "device", "expectation"),
    [
        (OPEN, "2.13.0+cu126", "cpu", Expected.FINDING),
        (OPEN, "2.14.0", "cpu", Expected.FINDING),
        (OPEN, "2.12.0", "cpu", Expected.UNKNOWN),
        (OPEN, "2.13.0", "cuda", Expected.UNKNOWN),
        (FIXED, "2.13.0", "cpu", Expected.FINDING),
        (FIXED, "2.14.0", "cpu", Expected.NOTHING),
        (FIXED, "2.15.0", "cpu", Expected.NOTHING),
        (FIXED, "2.13.1", "cpu", Expected.UNKNOWN),
        (FIXED, "2.12.0", "cpu", Expected.UNKNOWN),
        (replace(OPEN, bad_on=("2.13.0", "2.15.0")), "2.14.1", "cpu", Expected.FINDING),
        (replace(FIXED, good_on=("2.11.0", "2.14.0")), "2.12.0", "cpu", Expected.UNKNOWN),
        (replace(FIXED, good_on=("2.11.0", "2.12.0")), "2.11.1", "cpu", Expected.NOTHING),
        (WONTFIX, "2.14.0", "cpu", Expected.FINDING),
        (FLAKY, "2.13.0", "cpu", Expected.UNKNOWN),
        (CorpusEntry(case=OPEN.case), "2.13.0", "cpu", Expected.NOTHING),
        (CorpusEntry(case=OPEN.case), "2.13.0", "cuda", Expected.NOTHING),
    ],
)
def test_what_is_expected_depends_on_the_torch_and_the_device(
    entry: CorpusEntry, torch: str, device: str, expectation: Expected
) -> None:
    assert expected(entry, torch, device) is expectation


def test_a_finding_that_a_newer_torch_does_not_have_is_fixed() -> None:
    after = with_observation(OPEN, "2.14.0+cpu", present=False)
    assert after == replace(OPEN, lifecycle=Lifecycle.FIXED, good_on=("2.14.0",))


def test_a_finding_that_an_older_torch_does_not_have_is_open_still() -> None:
    after = with_observation(OPEN, "2.9.1", present=False)
    assert (after.lifecycle, after.good_on) == (Lifecycle.OPEN, ("2.9.1",))


def test_a_fixed_finding_that_comes_back_is_open() -> None:
    after = with_observation(FIXED, "2.15.0", present=True)
    assert (after.lifecycle, after.bad_on, after.good_on) == (
        Lifecycle.OPEN,
        ("2.13.0", "2.15.0"),
        ("2.14.0",),
    )


def test_the_last_look_at_a_release_counts() -> None:
    after = with_observation(OPEN, "2.13.0", present=False)
    assert (after.lifecycle, after.bad_on, after.good_on) == (Lifecycle.FIXED, (), ("2.13.0",))


def test_releases_are_in_order_of_their_numbers() -> None:
    after = with_observation(with_observation(OPEN, "2.9.0", present=True), "2.10.0", present=True)
    assert after.bad_on == ("2.9.0", "2.10.0", "2.13.0")


def test_a_flaky_finding_that_stays_away_proves_nothing() -> None:
    assert with_observation(FLAKY, "2.14.0", present=False) == FLAKY


def test_what_is_not_to_be_fixed_can_be_gone_all_the_same() -> None:
    assert with_observation(WONTFIX, "2.14.0", present=True).lifecycle is Lifecycle.WONTFIX
    assert with_observation(WONTFIX, "2.14.0", present=False).lifecycle is Lifecycle.FIXED


def test_another_finding_takes_the_place_of_the_recorded_one_which_a_note_keeps() -> None:
    after = with_finding(replace(OPEN, issue="https://x/1"), divergence("loss"), "2.13.0", "cpu")
    assert after.signature == "divergence/fully_shard/loss"
    assert (after.lifecycle, after.bad_on, after.issue) == (
        Lifecycle.OPEN,
        ("2.13.0",),
        "https://x/1",
    )
    assert after.notes["was"] == "divergence/fully_shard/gradient with torch 2.13.0, open"


def test_what_another_release_has_shown_is_never_replaced() -> None:
    before = replace(OPEN, bad_on=("2.13.0", "2.14.0"))
    after = with_finding(before, divergence("loss"), "2.14.0", "cpu")
    assert (after.signature, after.findings) == (OPEN.signature, OPEN.findings)
    assert (after.bad_on, after.good_on) == (("2.13.0",), ())
    assert after.notes["torch 2.14.0"] == "shows divergence/fully_shard/loss"
