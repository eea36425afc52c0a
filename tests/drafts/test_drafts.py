"""Drafts of issues, from entries and evidence made by hand."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import subprocess
from pathlib import Path

import msgspec
import pytest
import verdicts
from cases import BACKWARD, FORWARD, STEP, chain, make_case
from command_line import fuzzshard
from hunt import mending_file

from fuzzshard import reproducer
from fuzzshard.case.case import WrapGroup
from fuzzshard.commands import report
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import LOOKED_UP, Confirmation, CorpusEntry, Culprit, make_entry
from fuzzshard.corpus.lifecycle import Lifecycle, release
from fuzzshard.corpus.scripts import scripts_of
from fuzzshard.corpus.store import save_unshrunk
from fuzzshard.doctor import clean_case
from fuzzshard.drafts.draft import MOST_CHARACTERS, draft
from fuzzshard.drafts.evidence import (
    Evidence,
    ScriptRuns,
    as_code,
    collect_env,
    readable,
    run_example,
)
from fuzzshard.drafts.words import title
from fuzzshard.mending.mend import own_mends
from fuzzshard.mending.source import as_diff
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.oracle import MISSING, Oracle, TensorOracle
from fuzzshard.parts.oracles import ORACLES
from fuzzshard.reproducer.forked import ForkedRanks
from fuzzshard.verdict import Finding, Status, Verdict

FINDING = Finding(
    oracle="gradient",
    engine="fully_shard",
    observed="0.5 at [0]",
    expected="1.0 at [0]",
    op=1,
    name="linear0.weight",
    comparison="bounded",
    error=0.5,
    bound=1e-6,
)
VERDICT = Verdict(status=Status.DIVERGENCE, findings=(FINDING,), comparison="bounded")
HERE = release(importlib.metadata.version("torch"))
INFO = {"torch": "2.13.0", "backend": "gloo"}
SCRIPT = (
    "# torchrun --standalone --nproc-per-node 2 repro.py\nimport torch\n\n\ndef train():\n"
    "    fully_shard(model)\n"
)
ENTRY = msgspec.structs.replace(
    make_entry(clean_case(2), VERDICT, INFO, confirmed=Confirmation(runs=3, reproduced=3)),
    bad_on=("2.12.0",),
    good_on=("2.15.0",),
)
EVIDENCE = Evidence(
    script=ScriptRuns(3, 3, "AssertionError: rank 0"),
    repeats=True,
    changes=("-reshard_after_forward=2\n+reshard_after_forward=True", "-optimizer.step()"),
    peer="ddp",
    exactly=msgspec.structs.replace(FINDING, bound=1e-15),
    environment="PyTorch version: 2.13.0",
)


def showing(status: Status = Status.DIVERGENCE, **changes: object) -> CorpusEntry:
    """An entry with another finding."""
    found = msgspec.structs.replace(FINDING, **changes)
    return verdicts.entry(verdict=Verdict(status=status, findings=(found,)))


def text(
    entry: CorpusEntry = ENTRY, evidence: Evidence = EVIDENCE, script: str | None = SCRIPT
) -> str:
    return draft(entry, script, evidence, {"reshard:int"})


def test_a_draft_has_everything_that_a_maintainer_asks_for() -> None:
    said = text()
    for wanted in (
        "# [FSDP2] fully_shard: gradient of a parameter is silently wrong with reshard_after_",
        "**Impact**: Silent wrong result: nothing is raised, and training goes on with it.\n",
        "**Who hits this**: Programs with this: reshard_after_forward=<int>",
        "### 🐛 Describe the bug",
        "### Versions",
        "torchrun --standalone --nproc-per-node 2 repro.py",
        "**It works** with any one of these changes to the script:",
        "```diff\n-reshard_after_forward=2\n+reshard_after_forward=True\n```",
        "AssertionError: rank 0",
        "Rounding explains at most 1e-06",
        "5.0e+05 times less",
        "In float64 the difference is still 0.5",
        "`DistributedDataParallel` agrees with plain training",
        "It shows in 3 of 3 runs of the script, and in 3 of 3 runs on fresh ranks when found.",
        f"| nightly | not tried |\n| {HERE} | shows it; run for this draft |",
        "| 2.12.0 | shows it |",
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
    assert "It works" not in said
    assert "No script can be written" in said
    assert "collect_env" not in said
    assert "It prints" not in said


def test_what_nobody_ran_is_not_said_to_help(tmp_path: Path) -> None:
    file = saved(tmp_path, 1) / "case.json"
    entry = msgspec.structs.replace(
        read_entry(file), culprits=(Culprit(change="without step", outcome="PASS"),)
    )
    file.write_bytes(encode_entry(entry))
    assert fuzzshard("report", file.parent, "--no-run") == 0
    assert "It works" not in file.with_name("report.md").read_text()


def test_a_script_of_one_process_is_run_without_torchrun() -> None:
    alone = SCRIPT.replace("torchrun --standalone --nproc-per-node 2 repro.py", "python repro.py")
    said = text(script=alone)
    assert "**To reproduce**, in one process:\n\n```\npython repro.py\n```" in said
    assert "torchrun" not in said


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


def test_what_torch_adds_to_a_message_is_left_out() -> None:
    observed = (
        "RuntimeError: no. (Could this error message be improved? If so, say.) from user code: a"
    )
    finding = msgspec.structs.replace(FINDING, oracle="exception", observed=observed, error=None)
    entry = make_entry(clean_case(2), Verdict(status=Status.CRASH, findings=(finding,)), INFO)
    assert "raises `RuntimeError: no`." in text(entry)


def test_private_names_in_a_script_are_told() -> None:
    assert "private names" not in text()
    said = text(script=SCRIPT + "from torch.utils._pytree import tree_map\n")
    assert "The script uses private names of torch: `torch.utils._pytree`." in said


def test_a_draft_of_a_bug_that_torch_knows_says_so_first() -> None:
    mend = next(m for m in own_mends().values() if m.filed)
    said = text(msgspec.structs.replace(ENTRY, cause=mend.slug))
    assert "Torch knows this very bug: #" in said.splitlines()[2]
    assert "this very bug" not in text()


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


def test_of_a_single_rank_its_own_traceback_is_told() -> None:
    trace = "Traceback (most recent call last):\n"
    own = f'{trace}  File "repro.py", line 1, in <module>\nAssertionError: one'
    printed = f"{own}\n{trace}  torch/distributed/run.py\nChildFailedError:\n  rank : 0\n"
    assert readable(printed, "/nowhere") == own


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
    assert mend.title.partition(": ")[2][:40] in said.splitlines()[0]
    assert mend.diagnosis.partition("\n")[0].replace("``", "`") in said
    assert "**A fix**, with which the same program passes. It shows the cause" in said
    assert as_diff(mend).rstrip() in said
    assert "program passes" not in text(entry)
    assert "A fix" not in text()


def test_a_draft_of_a_known_cause_says_who_hits_it_and_what_they_can_do() -> None:
    mend = next(m for m in own_mends().values() if m.setup and m.workaround)
    said = text(msgspec.structs.replace(ENTRY, cause=mend.slug))
    assert f"**Who hits this**: {mend.setup.replace('``', '`')}\n" in said
    assert f"**Workaround**: {mend.workaround.replace('``', '`')}\n" in said
    assert said.index("**Impact**") < said.index("**Who hits this**") < said.index("```python")


@pytest.mark.parametrize(("observed", "expected"), [("Tensor", "DTensor"), ("DTensor", "Tensor")])
def test_a_parameter_that_stays_unsharded_has_a_consequence(observed: str, expected: str) -> None:
    values = {"observed": f"{observed}[2]", "expected": f"{expected}[2]", "error": None}
    entry = showing(oracle="registration", **values)
    assert ("does not see a step" in text(entry)) == (observed == "Tensor")


RESHARDED = make_case(
    chain(a=Linear(out=4)),
    wrap=(WrapGroup(modules=("",), reshard_after_forward=2),),
    schedule=(FORWARD, BACKWARD, STEP),
)


def code(*changes: str) -> list[str]:
    crash = msgspec.structs.replace(FINDING, oracle="exception", observed="IndexError", op=1)
    verdict = Verdict(status=Status.CRASH, findings=(crash,))
    entry = msgspec.structs.replace(
        make_entry(RESHARDED, verdict, INFO),
        culprits=tuple(Culprit(change=change, outcome="PASS") for change in changes),
    )
    (script, *_) = scripts_of(entry, reproducer.scripts)
    return [change.diff for change in as_code(entry, script)]


def test_a_change_that_helps_is_told_as_lines_of_the_script() -> None:
    (diff,) = code("with reshard_after_forward=True in place of 2")
    removed, added = diff.splitlines()
    assert removed.startswith("-fully_shard(")
    assert "reshard_after_forward=2" in removed
    assert added.startswith("+fully_shard(")
    assert "reshard_after_forward=2" not in added


def test_a_change_after_which_nothing_can_be_wrong_is_not_told() -> None:
    assert code("without backward", "without step") == []


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


def test_the_command_writes_the_draft_beside_the_entry_or_where_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "corpus", 1)
    assert fuzzshard("report", folder, "--no-run") == 0
    assert "read it before you send it" in capsys.readouterr().out
    said = (folder / "report.md").read_text()
    assert said.startswith("# [FSDP2]")
    assert "Nothing was run for this draft; its versions are" in said
    assert "comes from a run" not in said
    assert fuzzshard("report", folder, "--no-run", "-o", tmp_path / "draft.md") == 0
    assert (tmp_path / "draft.md").read_text() == (folder / "report.md").read_text()


def test_what_is_no_finding_has_no_draft(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path, 1)
    assert fuzzshard("report") == 2
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
    assert "**Where it first differs**: `linear0.weight`, rank 0: expected " in alone
    assert "<- here" in alone


def test_no_value_is_called_wrong_where_a_dtype_is() -> None:
    observed, expected = (f"a tensor of shape [2], torch.{t}" for t in ("float64", "float32"))
    entry = showing(observed=observed, expected=expected, error=None)
    assert entry.findings[0].type_due is not None
    impact = text(entry).partition("**Impact**")[2].splitlines()[0]
    assert "wrong result" not in impact
    assert "goes on with a tensor of another type" in impact


def test_what_is_missing_is_said_once_and_needs_no_bound() -> None:
    values = {"observed": "None", "expected": "a tensor of shape [2]", "detail": MISSING}
    said = text(showing(**values, error=None, bound=None), script=None)
    where = f"(`linear0.weight` after {clean_case(2).schedule[FINDING.op].noun()})"
    assert f"gradient of a parameter is None where plain training has one {where}" in said
    assert said.count("a tensor of shape [2]") == 1
    assert "does not depend on rounding" in said


def test_plain_torch_is_wrong_where_the_script_has_no_engine_or_the_cause_is_elsewhere() -> None:
    def accuses(entry: CorpusEntry, script: str | None) -> bool:
        said = text(entry, script=script)
        return said.startswith("# [FSDP2]") and "- `fully_shard` is wrong" in said

    plain = SCRIPT.replace("fully_shard(model)", "pass")
    assert accuses(ENTRY, SCRIPT)
    assert not accuses(ENTRY, plain)
    assert "fully_shard" not in text(ENTRY, script=plain)
    of_compile = next(m for m in own_mends().values() if m.component == "compile")
    elsewhere = msgspec.structs.replace(ENTRY, cause=of_compile.slug)
    assert not accuses(elsewhere, SCRIPT)
    told = "# torchrun repro.py\n# fully_shard is to blame.\nimport torch\nfully_shard(model)\n"
    assert "# fully_shard is to blame." in text(ENTRY, script=told)
    assert "# torchrun repro.py\nimport torch\n" in text(elsewhere, script=told)


def test_what_was_looked_for_in_public_is_told_with_its_query_and_date() -> None:
    mend = own_mends()["reshard_is_ignored"]
    said = text(msgspec.structs.replace(ENTRY, cause=mend.slug))
    look = mend.public[0]
    assert f'- #137348, {look.says} (searched on {look.date} for "{look.query}")' in said
    link = "https://github.com/pytorch/torchtitan/issues/1"
    noted = msgspec.structs.replace(ENTRY, issue=link, notes={LOOKED_UP: "2026-11-24: nothing"})
    assert "- pytorch/torchtitan#1, the same\n- 2026-11-24: nothing" in text(noted)


def test_a_draft_is_disclosed_as_a_tool_s_and_leaves_a_person_something_to_write() -> None:
    said = text()
    mine = said.partition("### In my words: why this matters")[2]
    assert mine.strip().startswith("*To be written by the person who sends this")
    assert "### AI disclosure" in mine


def test_what_the_newest_torch_has_lost_is_said_first() -> None:
    fixed = msgspec.structs.replace(ENTRY, lifecycle=Lifecycle.FIXED)
    impact = text(fixed).partition("**Impact**")[2].splitlines()[0]
    assert impact.endswith("**Torch 2.15.0, the newest that was tried, does not show it.**")


def test_a_title_names_a_component_once() -> None:
    for name in own_mends():
        words = title(msgspec.structs.replace(showing(Status.CRASH), cause=name), ())
        tag, _, rest = words.removeprefix("[").partition("] ")
        assert not rest.startswith(f"{tag}:"), words


def test_a_title_ends_with_a_whole_word() -> None:
    words = " ".join(["splitting"] * 40)
    title = text(showing(Status.CRASH, oracle="exception", observed=words)).splitlines()[0]
    assert title.endswith(" splitting ...")
    assert len(title) <= len("# ") + 120


def test_frames_that_only_pass_a_call_on_are_left_out() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "repro.py", line 38, in <module>',
        "    model(x)",
        '  File ".../torch/nn/modules/module.py", line 1787, in _call_impl',
        "    return inner()",
        "           ^^^^^^^",
        '  File ".../fsdp/_fully_shard/_fsdp_state.py", line 343, in _pre_forward',
        "    args = group.pre_forward(args)",
        "IndexError: out of range",
    ]
    said = readable("".join(f"[rank0]: {line}\n" for line in lines), "/nowhere")
    kept = [*lines[:3], *lines[6:]]
    assert said == "\n".join(f"[rank0]: {line}" for line in kept)


def test_only_a_finding_of_a_corpus_can_be_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path, 1)
    assert fuzzshard("report", folder / "unshrunk.json", "--no-run") == 2
    assert "is no finding of a corpus" in capsys.readouterr().err


def test_an_example_of_a_plausible_program_comes_before_what_was_found() -> None:
    mend = own_mends()["reshard_is_ignored"]
    known = msgspec.structs.replace(ENTRY, cause=mend.slug)
    evidence = dataclasses.replace(EVIDENCE, example=ScriptRuns(1, 1, "AssertionError: example"))
    said = text(known, evidence)
    assert said.index(mend.example) < said.index("AssertionError: example") < said.index(SCRIPT)
    passed = dataclasses.replace(EVIDENCE, example=ScriptRuns(1, 0, ""))
    assert mend.example not in text(known, passed)


@pytest.mark.parametrize("slug", [slug for slug, mend in own_mends().items() if mend.example])
def test_an_example_is_short_and_says_on_how_many_ranks_it_runs(slug: str) -> None:
    mend = own_mends()[slug]
    run, *lines = mend.example.splitlines()
    assert run == f"# torchrun --standalone --nproc-per-node {mend.example_ranks} example.py"
    assert len(lines) < 40
    compile(mend.example, slug, "exec")


@pytest.mark.slow
def test_the_example_of_the_optimizer_fails_and_passes_with_its_mend(
    tmp_path: Path, run_script: ForkedRanks
) -> None:
    mend = own_mends()["optimizer_is_stepped_for_its_state"]
    stock = run_example(mend)
    assert (stock.runs, stock.shown) == (1, 1)
    assert "expected=tensor(" in stock.output
    preload = mending_file(tmp_path, mend.slug)
    assert not run_script(mend.example, mend.example_ranks, preload=(preload,)).fails


def test_of_a_finding_that_is_gone_no_draft_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path, 1)
    gone = Evidence(script=ScriptRuns(3, 0), repeats=False, shows=Status.PASS)
    monkeypatch.setattr(report, "_gather", lambda *arguments: gone)
    assert fuzzshard("report", folder) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{folder} passes with torch ")
    assert not (folder / "report.md").exists()


def test_what_is_said_of_a_tensor_names_its_place_once() -> None:
    said = text(showing(oracle="registered_parameter"))
    assert "`fully_shard`, linear0.weight after the forward is not that of the same" in said


@pytest.mark.parametrize("oracle", [o for o in ORACLES if not isinstance(o, TensorOracle)])
def test_an_oracle_that_compares_no_tensors_says_what_it_rests_on(oracle: Oracle) -> None:
    assert oracle.basis


def test_a_leak_is_not_told_as_a_difference_from_the_reference() -> None:
    expected = "freed with the last reference to it"
    said = text(showing(oracle="leak", detail="survivor", expected=expected))
    assert "does not depend on rounding; expected: freed with the last reference to it" in said
    assert "averaged by an explicit all-reduce" not in said


def test_a_title_names_a_part_of_torch_once() -> None:
    entry = msgspec.structs.replace(ENTRY, cause="awaited_input_loses_gradient")
    assert text(entry).startswith("# [torch.compile] the gradient of an input is lost")
