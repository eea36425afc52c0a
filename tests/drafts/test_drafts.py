"""Drafts of issues, from entries and evidence made by hand."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from command_line import fuzzshard

from fuzzshard.campaign.saved import saved_cause
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import Confirmation, CorpusEntry, Culprit, make_entry
from fuzzshard.corpus.store import save_unshrunk
from fuzzshard.doctor import clean_case
from fuzzshard.drafts.draft import MOST_CHARACTERS, draft
from fuzzshard.drafts.duplicates import Duplicate, duplicates
from fuzzshard.drafts.evidence import Evidence, ScriptRuns, collect_env, readable
from fuzzshard.mending.mend import own_mends
from fuzzshard.mending.source import as_diff
from fuzzshard.parts.oracle import MISSING
from fuzzshard.verdict import Finding, Status, Verdict

FINDING = Finding(
    oracle="gradient",
    engine="fully_shard",
    observed="0.5 at [0]",
    expected="1.0 at [0]",
    op=1,
    name="linear0.weight",
    rung="bounded",
    error=0.5,
    bound=1e-6,
)
VERDICT = Verdict(status=Status.DIVERGENCE, findings=(FINDING,), rung="bounded")
INFO = {"torch": "2.13.0", "backend": "gloo"}
SCRIPT = (
    "# torchrun --standalone --nproc-per-node 2 repro.py\nimport torch\n\n\ndef train():\n   "
    " pass\n"
)
ENTRY = msgspec.structs.replace(
    make_entry(clean_case(2), VERDICT, INFO, confirmed=Confirmation(runs=3, reproduced=3)),
    bad_on=("2.12.0",),
    good_on=("2.15.0",),
)
EVIDENCE = Evidence(
    script=ScriptRuns(3, 3, "AssertionError: rank 0"),
    repeats=True,
    culprits=(
        Culprit(change="with reshard_after_forward=True in place of 2", outcome="PASS"),
        Culprit(change="without step", outcome="PASS"),
    ),
    peer="ddp",
    exactly=msgspec.structs.replace(FINDING, bound=1e-15),
    environment="PyTorch version: 2.13.0",
)


def text(
    entry: CorpusEntry = ENTRY, evidence: Evidence = EVIDENCE, script: str | None = SCRIPT
) -> str:
    return draft(Path("corpus/findings/one"), entry, script, evidence, {"reshard:int"}, [])


def test_a_draft_has_everything_that_a_maintainer_asks_for() -> None:
    said = text()
    for wanted in (
        "# [FSDP2] gradient of a parameter is silently wrong",
        "### 🐛 Describe the bug",
        "### Versions",
        "torchrun --standalone --nproc-per-node 2 repro.py",
        "it works **with reshard_after_forward=True in place of 2**",
        "- without step",
        "AssertionError: rank 0",
        "Rounding explains 1e-06 there",
        "5.0e+05 times that",
        "In float64 the difference is still 0.5",
        "Vote: `DistributedDataParallel`",
        "3 of 3 runs of the case on fresh ranks, 3 of 3 runs of the script",
        "| 2.15.0 | good |\n| 2.13.0 | bad, found here |\n| 2.12.0 | bad |",
        "drafted by a tool, fuzzshard",
        "PyTorch version: 2.13.0",
    ):
        assert wanted in said, wanted


def test_the_script_in_a_draft_is_the_one_that_ran() -> None:
    assert SCRIPT.rstrip() in text()


def test_a_draft_fits_into_an_issue() -> None:
    printed = ScriptRuns(1, 1, "x\n" * 90_000)
    long = dataclasses.replace(EVIDENCE, environment="flags\n" * 40_000, script=printed)
    said = text(evidence=long, script=SCRIPT + "# a line of a very long script\n" * 800)
    assert len(said) <= MOST_CHARACTERS
    assert "### Versions" in said


def test_a_draft_without_runs_says_so() -> None:
    said = text(evidence=Evidence(), script=None)
    assert "was not looked for" in said
    assert "No script can be written" in said
    assert "collect_env" in said


@pytest.mark.parametrize(
    ("oracle", "status", "wanted"),
    [
        ("exception", Status.CRASH, "raises `IndexError: list index out of range`"),
        ("registration", Status.DIVERGENCE, "docstrings of `fully_shard`"),
        ("communication", Status.DIVERGENCE, "documented policies"),
        ("replicas", Status.DIVERGENCE, "ranks are compared with each other"),
        ("deadline", Status.HANG, "hangs"),
    ],
)
def test_every_kind_of_finding_has_its_words(oracle: str, status: Status, wanted: str) -> None:
    observed = "IndexError: list index out of range"
    finding = Finding(oracle=oracle, engine="fully_shard", observed=observed, expected="no error")
    entry = make_entry(clean_case(2), Verdict(status=status, findings=(finding,)), INFO)
    assert wanted in text(entry)


def test_output_is_that_of_the_first_rank_that_fails() -> None:
    trace = "Traceback (most recent call last):\n"
    printed = (
        "repro.py:3: FutureWarning\nrepro.py:3: FutureWarning\n"
        f"[rank1]: {trace}[rank1]: AssertionError: rank 1\n"
        f"[rank0]: {trace}[rank0]: AssertionError: rank 0\n"
        "E1121 21:00:00.000000 77 site-packages/torch/distributed/elastic/api.py:1] failed "
        "(exitcode: 1)\n"
        f"{trace}  torch/distributed/run.py\nChildFailedError:\n  host : here\n"
    )
    said = (
        f"repro.py:3: FutureWarning\n[rank0]: {trace}[rank0]: AssertionError: rank 0\n(rank 1 "
        "likewise)"
    )
    assert readable(printed, "/nowhere") == said


def test_of_a_rank_that_died_torchrun_says_so_without_the_name_of_the_host() -> None:
    printed = (
        "Traceback (most recent call last):\n  torch/distributed/run.py\n"
        "ChildFailedError:\n  host      : here\n  traceback : Signal 11 (SIGSEGV) received by PID "
        "7\n"
    )
    said = "ChildFailedError:\n  traceback : Signal 11 (SIGSEGV) received by PID 7"
    assert readable(printed, "/nowhere") == said


def test_a_draft_of_a_known_cause_carries_its_mend_as_a_diff_against_torch() -> None:
    mend = next(m for m in own_mends().values() if m.edits_here() and m.torch.include())
    entry = msgspec.structs.replace(ENTRY, cause=mend.slug)
    said = text(entry, dataclasses.replace(EVIDENCE, cured=True))
    assert mend.title[:40] in said.splitlines()[0]
    assert mend.diagnosis.replace("``", "`") in said
    assert "**A change of torch** with which the script's case passes; it shows the cause" in said
    assert as_diff(mend).rstrip() in said
    assert "case passes" not in text(entry)
    assert "A change of torch" not in text()


def test_a_draft_of_a_known_cause_says_who_runs_into_it_and_not_what_the_case_is_made_of() -> None:
    mend = next(m for m in own_mends().values() if m.setup)
    said = text(msgspec.structs.replace(ENTRY, cause=mend.slug))
    assert f"**Who runs into it**\n\n{mend.setup.replace('``', '`')}\n" in said
    assert "It takes" in text()
    assert "It takes" not in said


@pytest.mark.parametrize(("observed", "expected"), [("Tensor", "DTensor"), ("DTensor", "Tensor")])
def test_a_parameter_that_stays_unsharded_has_a_consequence(observed: str, expected: str) -> None:
    finding = msgspec.structs.replace(
        FINDING,
        oracle="registration",
        observed=f"{observed}[2]",
        expected=f"{expected}[2]",
        error=None,
    )
    entry = make_entry(clean_case(2), Verdict(status=Status.DIVERGENCE, findings=(finding,)), INFO)
    assert ("does not see a step" in text(entry)) == (observed == "Tensor")


def test_a_change_after_which_nothing_can_be_wrong_is_not_told() -> None:
    changes = (
        "without backward",
        "without forward; without backward",
        "without forward of linear0",
    )
    culprits = tuple(Culprit(change=change, outcome="PASS") for change in changes)
    said = text(evidence=dataclasses.replace(EVIDENCE, culprits=culprits))
    assert "it works **without forward of linear0**" in said
    assert "It also works" not in said


def test_names_of_other_entries_are_for_the_sender_only() -> None:
    twin = Duplicate("divergence-of-the-same", "same cause")
    said = draft(Path("corpus/findings/one"), ENTRY, SCRIPT, EVIDENCE, frozenset(), [twin])
    assert twin.name not in re.sub(r"<!--.*?-->", "", said, flags=re.DOTALL)
    assert twin.name in said


def test_the_processor_is_no_part_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = (
        "OS: Linux\n\nCPU:\nModel name: one\nFlags: fpu\n\nVersions of relevant "
        "libraries:\n[pip3] torch"
    )
    result = subprocess.CompletedProcess([], 0, stdout=printed)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: result)
    assert collect_env() == "OS: Linux\n\nVersions of relevant libraries:\n[pip3] torch"


def saved(corpus: Path, seed: int) -> Path:
    case = msgspec.structs.replace(clean_case(2), seed=seed)
    return save_unshrunk(corpus, make_entry(case, VERDICT, INFO), SCRIPT)


def test_entries_of_the_same_signature_may_be_duplicates(tmp_path: Path) -> None:
    one, two = saved(tmp_path, 1) / "case.json", saved(tmp_path, 2)
    entry = read_entry(one)
    (other,) = duplicates(one, entry, saved_cause(one, entry))
    assert other.name == two.name
    assert other.why.startswith("same signature; ")


@pytest.mark.parametrize(("cause", "found"), [("late", ["same cause"]), ("early", [])])
def test_entries_that_name_their_causes_are_duplicates_where_they_name_the_same(
    tmp_path: Path, cause: str, found: list[str]
) -> None:
    folders = [saved(tmp_path, seed) for seed in (1, 2)]
    for folder, named in zip(folders, ("late", cause), strict=True):
        file = folder / "case.json"
        file.write_bytes(encode_entry(msgspec.structs.replace(read_entry(file), cause=named)))
    file = folders[0] / "case.json"
    assert [each.why for each in duplicates(file, read_entry(file), frozenset())] == found


def test_the_command_writes_the_draft_beside_the_entry_or_where_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "corpus", 1)
    assert fuzzshard("report", folder, "--no-run") == 0
    assert "read it before you send it" in capsys.readouterr().out
    assert (folder / "report.md").read_text().startswith("# [FSDP2]")
    assert fuzzshard("report", folder, "--no-run", "-o", tmp_path / "draft.md") == 0
    assert (tmp_path / "draft.md").read_text() == (folder / "report.md").read_text()


def test_what_is_no_finding_has_no_draft(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path, 1)
    assert fuzzshard("report", folder / "unshrunk.json") == 2
    assert fuzzshard("report", folder, "--runs", "0") == 2
    assert fuzzshard("report", tmp_path / "nowhere") == 2
    assert all(line.startswith("fuzzshard: ") for line in capsys.readouterr().err.splitlines())


def test_the_contract_that_somebody_wrote_down_is_quoted(tmp_path: Path) -> None:
    folder = saved(tmp_path / "corpus", 1)
    assert (
        fuzzshard("corpus", "mark", folder, "--contract", '"resharding frees it" (`reshard`)') == 0
    )
    assert fuzzshard("report", folder, "--no-run") == 0
    assert 'Documented: "resharding frees it" (`reshard`)' in (folder / "report.md").read_text()
    assert fuzzshard("corpus", "mark", folder, "--contract", "") == 0
    assert read_entry(folder / "case.json").notes == {}


def test_numbers_of_the_run_that_found_it_are_told_only_without_a_script() -> None:
    assert VERDICT.findings[0].observed not in text()
    alone = text(script=None)
    assert alone.count(VERDICT.findings[0].observed) == 1
    assert "| gradient | `linear0.weight` |" in alone
    assert "<- here" in alone


def test_entries_that_share_a_signature_and_nothing_else_are_no_duplicates(tmp_path: Path) -> None:
    one = saved(tmp_path, 1) / "case.json"
    saved(tmp_path, 2)
    assert duplicates(one, read_entry(one), {"a feature that nobody has"}) == []


def test_what_is_missing_is_said_once_and_needs_no_bound() -> None:
    finding = msgspec.structs.replace(
        FINDING,
        observed="None",
        expected="a tensor of shape [2]",
        detail=MISSING,
        error=None,
        bound=None,
    )
    entry = make_entry(clean_case(2), Verdict(status=Status.DIVERGENCE, findings=(finding,)), INFO)
    said = text(entry, script=None)
    where = f"(`linear0.weight` after {clean_case(2).schedule[FINDING.op].noun()})"
    assert f"gradient of a parameter is None where plain training has one {where}" in said
    assert said.count("a tensor of shape [2]") == 1
    assert "does not depend on rounding" in said
