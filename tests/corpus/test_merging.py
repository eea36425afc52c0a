"""What an entry keeps of the one that it takes the place of."""

from __future__ import annotations

import pytest
import verdicts
from msgspec.structs import replace
from verdicts import ALWAYS, DIVERGENCE

from fuzzshard.corpus.distinct import merge_annotations, replaced
from fuzzshard.corpus.entry import CONTRACT, Confirmation, CorpusEntry
from fuzzshard.corpus.lifecycle import Lifecycle

VERDICT = replace(DIVERGENCE, notes={"ddp": "refused: now"})
HALF = Confirmation(runs=10, reproduced=5)


def entry(*, torch: str = "2.13.0+cpu", **changes: object) -> CorpusEntry:
    more = {"confirmed": ALWAYS, **changes}
    return verdicts.entry(verdict=VERDICT, torch=torch, **more)


def test_what_people_wrote_stays_and_what_was_said_of_the_old_case_goes() -> None:
    old = entry(
        issue="https://x/1",
        lifecycle=Lifecycle.WONTFIX,
        notes={CONTRACT: "equal gradients", "repro.py": "did not show it", "ddp": "refused: then"},
    )
    new = replaced(old, entry())
    assert (new.issue, new.lifecycle) == ("https://x/1", Lifecycle.WONTFIX)
    assert new.notes == {CONTRACT: "equal gradients", "ddp": "refused: now"}


def test_the_releases_that_were_looked_at_stay_and_decide_with_the_new_one() -> None:
    old = entry(lifecycle=Lifecycle.FIXED, bad_on=("2.12.0",), good_on=("2.13.0", "2.14.0"))
    new = replaced(old, entry())
    assert (new.bad_on, new.good_on) == (("2.12.0", "2.13.0"), ("2.14.0",))
    assert new.lifecycle is Lifecycle.FIXED
    assert replaced(old, entry(torch="2.15.0")).lifecycle is Lifecycle.OPEN


def test_releases_of_another_device_or_another_finding_are_not_taken_over() -> None:
    known = {"bad_on": ("2.12.0",), "issue": "https://x/1"}
    for old in (
        entry(backend="nccl", **known),
        entry(signature="divergence/fully_shard/loss", **known),
    ):
        new = replaced(old, entry())
        assert (new.bad_on, new.issue) == (("2.13.0",), "https://x/1")


@pytest.mark.parametrize(
    ("was", "now", "lifecycle"),
    [
        (HALF, None, Lifecycle.FLAKY),
        (HALF, ALWAYS, Lifecycle.OPEN),
        (ALWAYS, ALWAYS, Lifecycle.FLAKY),
    ],
    ids=["not measured anew", "measured anew", "said by people"],
)
def test_flaky_stays_until_a_rate_is_measured_that_says_otherwise(
    was: Confirmation, now: Confirmation | None, lifecycle: Lifecycle
) -> None:
    old = entry(confirmed=was, lifecycle=Lifecycle.FLAKY)
    assert merge_annotations(entry(confirmed=now), old).lifecycle is lifecycle
