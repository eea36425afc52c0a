"""Campaigns on torch that has mends: what is known is counted, and hides nothing."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_campaign import (
    PASS,
    Ran,
    campaign,
    divergence,
    make_case,
    numbered,
    shrink_seed_and_norm,
    without_followers,
)
from mend_files import mend_file
from msgspec.structs import replace

from fuzzshard import events
from fuzzshard.campaign import worker
from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.store import entry_files
from fuzzshard.report.lines import event_lines
from fuzzshard.verdict import Verdict

SHOWN, OTHER = divergence(), divergence("output")


class Mends:
    """Two mends in a folder of their own, and campaigns that have them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.late = str(mend_file(folder, "late", "def apply(patch): pass"))
        self.early = str(mend_file(folder, "early", "def apply(patch): pass"))

    def campaign(self, corpus: Path, verdict_of: Any, with_mends: Any, /, **options: Any) -> Ran:
        extra = () if options.get("mends") == "off" else (self.folder,)
        options = {"mends": "both", "extra_mends": extra, "max_cases": 8, **options}
        return campaign(corpus, verdict_of, with_mends=with_mends, **options)


@pytest.fixture
def mends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mends:
    monkeypatch.setattr(worker, "ALIKE", 1)
    monkeypatch.setattr(worker, "STOCK_TURN", 0)
    return Mends(tmp_path / "mends")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return tmp_path / "corpus"


def lines(ran: Ran) -> str:
    return "\n".join(line for event in ran.events for line in event_lines(event))


@pytest.mark.parametrize(
    ("mode", "alike", "on_stock"),
    [("both", 1, {3, 7}), ("both", 2, {6, 7}), ("on", 1, set()), ("off", 1, set(range(8)))],
    ids=["both", "two in a row", "on", "off"],
)
def test_cases_run_on_the_torch_that_was_asked_for(
    mends: Mends,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    alike: int,
    on_stock: set[int],
) -> None:
    monkeypatch.setattr(worker, "ALIKE", alike)
    monkeypatch.setattr(worker, "STOCK_TURN", 3)
    ran = mends.campaign(corpus, lambda case: PASS, lambda case, on: PASS, mends=mode)
    suffixes = {index: "" if index in on_stock else " mended" for index in range(8)}
    assert [line for line in ran.log if line.startswith("run")] == [
        f"run {i}{s}" for i, s in suffixes.items()
    ]
    assert ran.of(events.CampaignStarted)[0].mends == mode


def test_all_mends_that_fit_are_on(mends: Mends, corpus: Path) -> None:
    seen = set()
    unfit = mend_file(mends.folder, "unfit", "EDITS = (Edit('torch.gone:f', 'x', 'y'),)")
    ran = mends.campaign(
        corpus, lambda case: PASS, lambda case, on: seen.add(on) or PASS, max_cases=2
    )
    (on,) = seen
    assert {mends.late, mends.early} <= set(on)
    assert ran.of(events.CampaignStarted)[0].mends_unfit == {
        str(unfit): "there is no module torch.gone"
    }
    assert f"not mended: {unfit}" in lines(ran)


def test_a_known_cause_is_counted_and_neither_saved_nor_shrunk_and_fails_nothing(
    mends: Mends, corpus: Path
) -> None:
    ran = mends.campaign(
        corpus, lambda case: SHOWN, lambda case, on: PASS if mends.late in on else SHOWN
    )
    known = [(event.index, event.signature, event.causes) for event in ran.of(events.KnownCause)]
    assert sorted(known) == [
        (0, SHOWN.signature, (mends.late,)),
        (4, SHOWN.signature, (mends.late,)),
    ]
    assert (ran.code, ran.finished.causes) == (0, {mends.late: 2})
    assert ran.finished.counts == {"PASS": 6, "DIVERGENCE": 2}
    assert (ran.finished.findings, ran.of(events.FindingFound)) == ((), [])
    assert ran.log.count("restart") <= 2, "only to start ranks"
    phases = [event for event in ran.of(events.PhaseChanged) if event.phase == "explaining"]
    assert [event.done for event in phases[:2]] == [0, 1]
    assert not (corpus / "findings").exists()
    assert "2 cases ran into 1 known bug of torch" in lines(ran)
    assert f"2 x {mends.late}" in lines(ran)
    assert "to see a known bug found and shrunk: fuzzshard run --mends off" in lines(ran)


def test_known_bugs_that_the_corpus_has_are_said_at_the_start(mends: Mends, corpus: Path) -> None:
    for norm in (True, False):
        ran = campaign(
            corpus,
            lambda case: SHOWN,
            cases=numbered(lambda i, norm=norm: make_case(i, norm=norm)),
            max_cases=1,
            fresh=True,
        )
    files = entry_files([corpus / "findings"])
    assert len(files) == 2
    for file in files:
        file.write_bytes(encode_entry(replace(read_entry(file), cause=mends.late)))
    ran = mends.campaign(
        corpus, lambda case: SHOWN, lambda case, on: PASS if mends.late in on else SHOWN
    )
    (loaded,) = ran.of(events.CorpusLoaded)
    assert (loaded.known, loaded.explained) == (0, 2)
    assert "the corpus has findings already: 2 of known bugs of torch" in lines(ran)


def test_a_case_that_is_cut_off_while_it_is_explained_is_judged_by_the_next_session(
    mends: Mends, corpus: Path
) -> None:
    def interrupt(case: Case, on: tuple[str, ...]) -> Verdict:
        os.kill(os.getpid(), signal.SIGINT)
        assert cut_off.wait(10)
        return PASS

    cut_off = threading.Event()
    first = mends.campaign(
        corpus,
        lambda case: SHOWN,
        interrupt,
        sink=lambda event: cut_off.set() if isinstance(event, events.Finishing) else None,
    )
    (folder,) = (corpus / "unjudged").iterdir()
    assert [file.name for file in folder.iterdir()] == ["unshrunk.json"]
    assert (first.code, first.finished.suspects) == (130, (str(folder),))
    assert f"failed, and was not explained before the end: {folder}" in lines(first)
    second = mends.campaign(corpus, lambda case: SHOWN, lambda case, on: SHOWN, max_cases=1)
    saved = corpus / "findings" / folder.name.removesuffix("-0")
    assert [Path(event.path) for event in second.of(events.FindingSaved)] == [saved]
    assert second.of(events.FindingFound)[0].index == -1
    assert not folder.exists()


def test_a_cause_that_a_signature_had_before_is_tried_first(mends: Mends, corpus: Path) -> None:
    ran = mends.campaign(
        corpus, lambda case: SHOWN, lambda case, on: PASS if mends.late in on else SHOWN
    )
    assert len(ran.of(events.KnownCause)) == 2
    assert ran.log.count("run 4 mended") == 1  # with the likely one
    assert ran.log.count("run 4") == 1


def test_a_tripwire_on_mended_torch_makes_a_finding_known(mends: Mends, corpus: Path) -> None:
    def tripping(case: Case, on: tuple[str, ...]) -> Verdict:
        return replace(SHOWN, tripped=("late",)) if case.seed == 2 else PASS

    ran = mends.campaign(corpus, lambda case: SHOWN if case.seed == 2 else PASS, tripping)
    assert (ran.code, ran.finished.causes, ran.of(events.FindingFound)) == (0, {mends.late: 1}, [])


def test_what_both_show_is_a_finding(mends: Mends, corpus: Path) -> None:
    def in_case_2(case: Case, on: tuple[str, ...] = ()) -> Verdict:
        return SHOWN if case.seed == 2 else PASS

    ran = mends.campaign(corpus, in_case_2, in_case_2)
    (saved,) = ran.of(events.FindingSaved)
    assert (saved.signature, saved.reproduced, ran.code) == (SHOWN.signature, 3, 1)
    assert ran.finished.causes == {}


def test_what_only_mended_torch_shows_is_the_fault_of_a_mend_and_of_no_torch(
    mends: Mends, corpus: Path
) -> None:
    def harmful(case: Case, on: tuple[str, ...]) -> Verdict:
        return SHOWN if mends.early in on and case.seed == 2 else PASS

    ran = mends.campaign(corpus, lambda case: PASS, harmful)
    (trouble,) = ran.of(events.InfraTrouble)
    assert trouble.index == 2
    assert f"{SHOWN.signature} shows with mends only ({mends.early})" in trouble.message
    assert read_entry(Path(trouble.path)).case.seed == 2
    assert ran.of(events.FindingFound) == []
    assert not (corpus / "findings").exists()
    assert ran.finished.counts == {"PASS": 7, "INFRA": 1}


def test_a_bug_that_a_known_one_hides_is_found_and_told_as_mended_torch_shows_it(
    mends: Mends, corpus: Path
) -> None:
    def two_bugs(case: Case, on: tuple[str, ...]) -> Verdict:
        return (SHOWN if case.seed == 2 else PASS) if mends.late in on else OTHER

    ran = mends.campaign(corpus, lambda case: OTHER, two_bugs)
    (saved,) = ran.of(events.FindingSaved)
    assert (saved.signature, saved.reproduced, saved.runs) == (SHOWN.signature, 3, 3)
    (file,) = entry_files([corpus / "findings"])
    assert read_entry(file).signature == SHOWN.signature
    judged = {
        event.index: event.signature for event in ran.of(events.CaseJudged) if event.signature
    }
    assert judged == {0: OTHER.signature, 2: SHOWN.signature, 4: OTHER.signature}
    assert (ran.code, ran.finished.causes) == (1, {mends.late: 2})


def test_shrinking_does_not_slip_into_a_known_bug(
    mends: Mends, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzzshard.campaign.reduce.shrink", shrink_seed_and_norm)

    def new_with_a_norm(case: Case, on: tuple[str, ...]) -> Verdict:
        return SHOWN if len(case.model.children) > 1 or mends.late not in on else PASS

    stream = numbered(lambda seed: make_case(seed, norm=seed == 3))
    ran = mends.campaign(corpus, lambda case: SHOWN, new_with_a_norm, cases=stream, max_cases=4)
    (saved,) = ran.of(events.FindingSaved)
    assert (saved.leaves_before, saved.leaves_after) == (2, 2)
    (file,) = entry_files([corpus / "findings"])
    assert read_entry(file).case == make_case(0, norm=True)


def test_a_new_finding_explains_later_cases_of_its_own(mends: Mends, corpus: Path) -> None:
    ran = mends.campaign(corpus, lambda case: SHOWN, lambda case, on: SHOWN)
    assert len(ran.of(events.FindingSaved)) == 1
    assert sorted(event.index for event in ran.of(events.FindingHit)) == list(range(1, 8))


def test_a_campaign_that_goes_on_keeps_its_counts_of_causes(
    mends: Mends, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_followers(monkeypatch)

    def known(case: Case, on: tuple[str, ...]) -> Verdict:
        return PASS if mends.late in on else SHOWN

    def interrupted(case: Case) -> Verdict:
        if case.seed == 8:
            raise KeyboardInterrupt
        return SHOWN

    first = mends.campaign(corpus, interrupted, known, max_cases=12)
    assert (first.code, first.finished.cases, first.finished.causes) == (130, 8, {mends.late: 2})
    second = mends.campaign(corpus, lambda case: SHOWN, known, max_cases=12)
    assert second.finished.cases == 12
    assert len(second.of(events.KnownCause)) == 1
    assert (second.code, second.finished.causes) == (0, {mends.late: 3})
