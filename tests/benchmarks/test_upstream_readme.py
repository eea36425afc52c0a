"""Counting what a replay said, folder by folder."""

from __future__ import annotations

from pathlib import Path

from upstream.readme import summarise

from fuzzshard.corpus.outcome import Outcome

RESULTS = (
    (Path("up/A1/a.json"), Outcome.PASS, ""),
    (Path("up/A1/b.json"), Outcome.SKIPPED, "needs CUDA"),
    (Path("up/A1/c.json"), Outcome.SKIPPED, "needs CUDA"),
    (Path("up/A1/wide/a.json"), Outcome.CHANGED, "divergence/ddp/gradient, was no finding"),
    (Path("up/B2/a.json"), Outcome.PASS, "(torch refuses the case)"),
)


def test_results_are_counted_by_their_folder() -> None:
    counts = {str(path): summary.counts for path, summary in summarise(RESULTS).items()}
    assert counts == {"up/A1": (3, 1, 2, 0), "up/A1/wide": (1, 0, 0, 1), "up/B2": (1, 0, 0, 1)}


def test_a_refused_case_did_not_pass_and_says_so() -> None:
    summary = summarise(RESULTS)[Path("up/B2")]
    assert summary.passed == 0
    assert list(summary.reasons) == ["(torch refuses the case)"]
