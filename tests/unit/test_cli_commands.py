"""Commands in this process, with a world that needs no ranks."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from command_line import fuzzshard
from mend_files import mend_file
from verdicts import DIVERGENCE, INFO, PASS, FakeWorld, divergence, entry

from fuzzshard.analysis.order import size_order
from fuzzshard.campaign.control import Control
from fuzzshard.case import codec
from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import Confirmation
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.store import save_unshrunk
from fuzzshard.corpus.verify import Condition, Verified
from fuzzshard.doctor import clean_case
from fuzzshard.errors import EXIT_INCONCLUSIVE, InfraError, UsageError
from fuzzshard.mending.mend import own_mends
from fuzzshard.verdict import Verdict
from fuzzshard.world.config import WorldConfig

Judge = Callable[[WorldConfig, Case], Verdict]
Judged = Callable[..., list[WorldConfig]]


@pytest.fixture
def judged_by(monkeypatch: pytest.MonkeyPatch) -> Judged:
    """Replaces the world by one that judges cases with a function; returns the configs of started
    ones.

    A mend may make every case pass.
    """

    def install(judge: Judge, *, cured_by: Path | None = None) -> list[WorldConfig]:
        started: list[WorldConfig] = []

        def world(config: WorldConfig) -> FakeWorld:
            started.append(config)
            made = FakeWorld(lambda case: judge(config, case))
            made.config, made.cured_by = config, str(cured_by)
            return made

        monkeypatch.setattr("fuzzshard.world.World", world)
        return started

    return install


def save(corpus: Path, num_ranks: int = 2, **how: Any) -> Path:
    return save_unshrunk(corpus, entry(clean_case(num_ranks), **how), "print('script')\n")


def test_replay_prints_one_line_for_each_entry_and_a_summary(
    tmp_path: Path,
    judged_by: Judged,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, two = save(tmp_path, 1), save(tmp_path, 2)
    started = judged_by(lambda _, case: DIVERGENCE if case.mesh.size == 2 else PASS)
    assert fuzzshard("replay", tmp_path, "--device", "cpu", "--worlds", 2) == 1
    *lines, summary = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["FIXED", str(one)], ["SAME", str(two)]]
    assert summary == "replayed 2: 1 SAME, 1 FIXED"
    assert [config.size for config in started] == [1, 1, 2, 2]


def test_verify_says_why_a_cpu_cannot_show_what_was_found_on_cuda(
    tmp_path: Path,
    judged_by: Judged,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = save(tmp_path, backend="nccl")
    judged_by(lambda *_: PASS)
    assert fuzzshard("corpus", "verify", folder, "--causes", "--device", "cpu") == 0
    assert "was found on CUDA" in capsys.readouterr().out


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("terminal", [True, False])
def test_replay_says_how_far_it_is_on_a_terminal_alone(
    tmp_path: Path,
    judged_by: Judged,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    options: tuple[str, ...],
) -> None:
    save(tmp_path)
    judged_by(lambda _, case: DIVERGENCE)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    fuzzshard("replay", tmp_path, "--device", "cpu", *options)
    printed = capsys.readouterr()
    assert ("replaying" in printed.err) is terminal
    assert "SAME" in printed.out
    assert "replaying" not in printed.out


def test_ctrl_c_says_how_far_a_command_was(
    tmp_path: Path,
    judged_by: Judged,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [save(tmp_path, seed) for seed in (1, 2)]
    runs = itertools.count()

    def interrupted(path: Path, *_: object) -> Verified:
        if next(runs):
            raise KeyboardInterrupt
        return Verified(path, Condition.OK)

    monkeypatch.setattr("fuzzshard.commands.corpus.verify_file", interrupted)
    assert fuzzshard("corpus", "verify", *entries, "--device", "cpu") == 130
    assert capsys.readouterr().err == "fuzzshard: interrupted: 1 of 2 done\n"


def test_replay_fails_for_no_finding_that_known_bugs_cause(
    tmp_path: Path, judged_by: Judged, capsys: pytest.CaptureFixture[str]
) -> None:
    case = tmp_path / "a.json"
    write_atomic(case, codec.encode(clean_case(2)))
    mine = mend_file(tmp_path / "mends", "mine", "def apply(patch): pass")
    judged_by(lambda *_: DIVERGENCE, cured_by=mine)
    replay = ("replay", case, "--device", "cpu")
    assert fuzzshard(*replay) == 1
    assert fuzzshard(*replay, "--known") == 1
    assert fuzzshard(*replay, "--known", "--extra-mends", mine.parent) == 0
    assert f"{DIVERGENCE.signature}, caused by {mine}" in capsys.readouterr().out
    assert fuzzshard(*replay, "--extra-mends", mine.parent) == 2
    assert fuzzshard(*replay, "--known", "--extra-mends", tmp_path / "typo") == 2
    assert "give a folder with one Python file for each mend" in capsys.readouterr().err


def test_replay_starts_as_many_ranks_as_asked_for(tmp_path: Path, judged_by: Judged) -> None:
    save(tmp_path)
    started = judged_by(lambda *_: PASS)
    assert fuzzshard("replay", tmp_path, "--device", "cpu", "--world-size", 3, "--worlds", 1) == 0
    assert [config.size for config in started] == [3]


def test_replay_as_json_prints_nothing_else(
    tmp_path: Path,
    judged_by: Judged,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = save(tmp_path)
    judged_by(lambda *_: PASS)
    assert fuzzshard("replay", tmp_path, "--device", "cpu", "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["path"], json.loads(line)["outcome"]) == (str(folder), "FIXED")
    assert json.loads(line)["torch"] == INFO["torch"]


def test_replay_of_an_empty_corpus_judges_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzzshard("replay", tmp_path, "--device", "cpu") == EXIT_INCONCLUSIVE
    assert capsys.readouterr().out == "replayed 0: no cases found\n"


def test_who_runs_saved_cases_says_what_an_interrupt_left_and_exits_with_130(
    tmp_path: Path,
    judged_by: Judged,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)

    def interrupted(*_: object) -> Verdict:
        raise KeyboardInterrupt

    judged_by(interrupted)
    for command, said in (
        (("replay",), "interrupted, 2 not replayed"),
        (("explain",), "explained 0: interrupted, 2 not explained"),
    ):
        assert fuzzshard(*command, tmp_path, "--device", "cpu") == 130
        assert capsys.readouterr().out == f"{said}\n"


def test_ctrl_c_ends_a_replay_in_all_worlds_after_the_cases_that_run(
    tmp_path: Path,
    judged_by: Judged,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for place in range(5):
        save(tmp_path / str(place), 1)
    both, heard, halt = threading.Barrier(2), threading.Event(), Control.halt

    def halt_and_tell(control: Control, reason: str) -> None:
        halt(control, reason)
        heard.set()

    def interrupted(*_: object) -> Verdict:
        if both.wait(timeout=20) == 0:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert heard.wait(timeout=20)
        return PASS

    monkeypatch.setattr(Control, "halt", halt_and_tell)
    monkeypatch.setattr("fuzzshard.campaign.control.GRACE_SECONDS", 60.0)
    judged_by(interrupted)
    assert fuzzshard("replay", tmp_path, "--device", "cpu", "--worlds", 2) == 130
    ended = capsys.readouterr().out.splitlines()[-1]
    assert ended == "replayed 2: 2 FIXED; interrupted, 3 not replayed"


def test_ctrl_c_anywhere_else_exits_with_130_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_paths: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fuzzshard.commands.show.only_case", interrupted)
    assert fuzzshard("show", "x/y") == 130
    assert capsys.readouterr() == ("", "fuzzshard: interrupted\n")


def test_a_fault_of_fuzzshard_is_not_reported_as_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_paths: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("fuzzshard.commands.show.only_case", broken)
    assert fuzzshard("show", "x/y") == 4
    assert "internal error" in capsys.readouterr().err


def test_show_draws_one_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path)
    assert fuzzshard("show", folder) == 0
    out = capsys.readouterr().out
    assert "divergence/fully_shard/gradient" in out
    assert f"fuzzshard replay {folder}" in out
    assert not any(line.endswith(" ") for line in out.splitlines())


def test_show_tells_about_a_known_bug_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    mend = next(mend for mend in own_mends().values() if mend.workaround)
    assert fuzzshard("show", mend.slug) == 0
    said = capsys.readouterr().out
    assert " ".join(mend.title.split()) in " ".join(said.split())
    assert mend.contract.source in " ".join(said.split())
    assert "What to do about it" in said
    assert fuzzshard("explain", mend.slug) == 2
    assert f"fuzzshard show {mend.slug}" in capsys.readouterr().err


def test_doctor_passes_where_the_planted_fault_is_found(
    judged_by: Judged, capsys: pytest.CaptureFixture[str]
) -> None:
    started = judged_by(lambda config, _: DIVERGENCE if config.preload else PASS)
    assert fuzzshard("doctor", "--device", "cpu", "--world-size", 2) == 0
    out = capsys.readouterr().out
    assert "FAIL" not in out
    assert "torch          2.13.0, cpu, gloo" in out
    assert [config.size for config in started] == [2, 2]


def test_doctor_as_json_has_an_object_for_each_line(
    judged_by: Judged, capsys: pytest.CaptureFixture[str]
) -> None:
    judged_by(lambda *_: PASS)
    assert fuzzshard("doctor", "--device", "cpu", "--json") == 4
    checks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {check["name"]: check["ok"] for check in checks}["planted fault"] is False


def dead(*_: object) -> Verdict:
    raise InfraError("rank 0 cannot start: no torch")


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (lambda *_: PASS, "FAIL  planted fault  missed"),
        (lambda *_: DIVERGENCE, "FAIL  clean case"),
        (dead, "no torch"),
    ],
    ids=["a fault that is missed", "a clean case that fails", "ranks that do not start"],
)
def test_doctor_says_what_fails(
    judge: Judge, said: str, judged_by: Judged, capsys: pytest.CaptureFixture[str]
) -> None:
    judged_by(judge)
    assert fuzzshard("doctor", "--device", "cpu") == 4
    assert said in capsys.readouterr().out


def shrink(path: Path, *options: str) -> int:
    """Shrinks on torch as it is, beside a corpus that has nothing else."""
    corpus = path / "corpus"
    return fuzzshard(
        "shrink", path, "--device", "cpu", "--mends", "off", "--corpus", corpus, *options
    )


def is_wrapped(case: Case) -> bool:
    return len(case.wrap) >= 1


HEADER = "# torchrun --standalone --nproc-per-node {} repro.py\n"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    def scripts(case: Case, *, signature: str, **_: object) -> list[str]:
        return [f"{HEADER.format(case.mesh.size)}print({signature!r}, {case.seed})\n"]

    shows = SimpleNamespace(fails=True, output="AssertionError: observed is not expected")
    monkeypatch.setattr("fuzzshard.reproducer.scripts", scripts)
    monkeypatch.setattr("fuzzshard.reproducer.check", lambda *_, **__: shows)
    for command in ("repro", "shrink"):
        monkeypatch.setattr(
            f"fuzzshard.commands.{command}.reduced_script", lambda entry, script, **_: script
        )


@pytest.mark.usefixtures("scripted")
def test_repro_prints_the_script_or_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save(tmp_path)
    assert fuzzshard("repro", folder, "--anew") == 0
    script = capsys.readouterr().out
    assert script == f"{HEADER.format(2)}print('divergence/fully_shard/gradient', 0)\n"
    assert fuzzshard("repro", folder, "--anew", "-o", tmp_path / "bug.py") == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "bug.py").read_text() == script


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(
    ("output", "code"),
    [("AssertionError: 1 is not 2", 1), ("ImportError: no fully_shard", 3), ("", 0)],
)
def test_repro_check_runs_the_script_on_the_ranks_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, code: int
) -> None:
    asked: list[int] = []

    def check(path: Path, num_ranks: int, **_: object) -> SimpleNamespace:
        assert path.read_text().startswith("# torchrun")
        asked.append(num_ranks)
        return SimpleNamespace(fails=bool(output), output=output)

    monkeypatch.setattr("fuzzshard.reproducer.check", check, raising=False)
    assert fuzzshard("repro", save(tmp_path), "--anew", "--check") == code
    assert asked == [2]


@pytest.mark.usefixtures("scripted")
def test_shrink_replaces_an_entry_by_its_smaller_form(tmp_path: Path, judged_by: Judged) -> None:
    folder = save(tmp_path)
    judged_by(lambda _, case: DIVERGENCE if is_wrapped(case) else PASS)
    assert shrink(folder) == 0
    entry = read_entry(folder / "case.json")
    assert len(codec.encode(entry.case)) < len(codec.encode(clean_case(2)))
    assert entry.confirmed is not None
    assert not entry.flaky
    assert codec.decode((folder / "unshrunk.json").read_bytes()) == clean_case(2)


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("runs", [8, None], ids=["interrupted", "to the end"])
def test_shrink_keeps_what_people_wrote_into_an_entry(
    tmp_path: Path, judged_by: Judged, runs: int | None
) -> None:
    folder = save(tmp_path)
    file = folder / "case.json"
    known = {
        "issue": "https://x/1",
        "lifecycle": Lifecycle.WONTFIX,
        "good_on": ("2.9.1",),
        "notes": {"contract": "equal gradients"},
    }
    write_atomic(file, encode_entry(msgspec.structs.replace(read_entry(file), **known)))
    count = itertools.count(1)

    def judge(_: WorldConfig, case: Case) -> Verdict:
        if next(count) == runs:
            signal.raise_signal(signal.SIGINT)
        return DIVERGENCE if is_wrapped(case) else PASS

    judged_by(judge)
    assert shrink(folder) == (130 if runs else 0)
    after = read_entry(file)
    assert size_order(after.case) < size_order(clean_case(2))
    assert {name: getattr(after, name) for name in known} == known
    assert after.bad_on == ("2.13.0",)


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("given", ["case.json", "."])
def test_shrink_never_writes_to_a_case_that_was_written_by_hand(
    tmp_path: Path,
    judged_by: Judged,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
) -> None:
    mine = tmp_path / "mine"
    write_atomic(mine / "case.json", codec.encode(clean_case(2)))
    monkeypatch.chdir(mine)
    judged_by(lambda _, case: DIVERGENCE if is_wrapped(case) else PASS)
    to = tmp_path / "corpus"
    assert fuzzshard("shrink", given, "--device", "cpu", "--mends", "off", "--corpus", to) == 0
    assert [file.name for file in mine.iterdir()] == ["case.json"]
    assert (mine / "case.json").read_bytes() == codec.encode(clean_case(2))
    (folder,) = (to / "findings").iterdir()
    assert read_entry(folder / "case.json").signature == DIVERGENCE.signature


def test_shrink_saves_a_finding_that_no_script_can_show(
    tmp_path: Path,
    judged_by: Judged,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scripts(case: Case, **_: object) -> list[str]:
        raise UsageError("a script cannot", "replay the case")

    monkeypatch.setattr("fuzzshard.reproducer.scripts", scripts)
    folder = save(tmp_path)
    judged_by(lambda _, case: DIVERGENCE if is_wrapped(case) else PASS)
    assert shrink(folder) == 0
    assert "a script cannot" in read_entry(folder / "case.json").notes["repro.py"]


@pytest.mark.slow
@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("ctrl_c", [1, 2])
def test_ctrl_c_leaves_the_smallest_case_so_far_on_disk_and_shrinking_goes_on_from_there(
    tmp_path: Path, judged_by: Judged, ctrl_c: int
) -> None:
    folder = save(tmp_path)
    runs = 0

    def judge(_: WorldConfig, case: Case) -> Verdict:
        nonlocal runs
        runs += 1
        if runs == 8:
            for _ in range(ctrl_c):
                signal.raise_signal(signal.SIGINT)
        return DIVERGENCE if is_wrapped(case) else PASS

    judged_by(judge)
    assert shrink(folder) == 130
    assert runs == 8
    so_far = read_entry(folder / "case.json").case
    assert size_order(so_far) < size_order(clean_case(2))
    assert shrink(folder, "--time", "60s") == 0
    entry = read_entry(folder / "case.json")
    assert size_order(entry.case) < size_order(so_far)
    assert entry.confirmed is not None
    assert codec.decode((folder / "unshrunk.json").read_bytes()) == clean_case(2)


def test_shrink_without_a_finding_changes_nothing(tmp_path: Path, judged_by: Judged) -> None:
    folder = save(tmp_path)
    before = (folder / "case.json").read_bytes()
    judged_by(lambda *_: PASS)
    assert shrink(folder) == 3
    assert (folder / "case.json").read_bytes() == before


@pytest.mark.usefixtures("scripted")
def test_shrink_does_not_turn_an_entry_into_another_finding(
    tmp_path: Path,
    judged_by: Judged,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = save(tmp_path)
    before = {file: file.read_bytes() for file in folder.iterdir()}
    judged_by(lambda *_: divergence("loss"))
    assert shrink(folder) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("CHANGED")
    assert "divergence/fully_shard/loss, was divergence/fully_shard/gradient" in line
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_replay_writes_what_it_saw_when_told_to(
    tmp_path: Path,
    judged_by: Judged,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = save(tmp_path)
    before = (folder / "case.json").read_bytes()
    judged_by(lambda *_: PASS)
    assert fuzzshard("replay", tmp_path, "--device", "cpu") == 0
    assert (folder / "case.json").read_bytes() == before
    assert fuzzshard("replay", tmp_path, "--device", "cpu", "--update") == 0
    assert "[updated: fixed, good on 2.13.0]" in capsys.readouterr().out
    assert read_entry(folder / "case.json").lifecycle == "fixed"
    assert fuzzshard("replay", tmp_path, "--device", "cpu", "--update") == 0
    assert "PASS" in capsys.readouterr().out.splitlines()[0]


def test_what_a_patched_torch_does_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path)
    assert fuzzshard("replay", tmp_path, "--update", "--preload", __file__) == 2
    assert "use one without the other" in capsys.readouterr().err


@pytest.mark.usefixtures("scripted")
def test_ctrl_c_ends_shrinking_and_leaves_the_smallest_case_so_far(
    tmp_path: Path, judged_by: Judged
) -> None:
    folder = save(tmp_path)
    runs = 0

    def judge(_: WorldConfig, case: Case) -> Verdict:
        nonlocal runs
        runs += 1
        if runs == 8:
            signal.raise_signal(signal.SIGINT)
        return DIVERGENCE if is_wrapped(case) else PASS

    judged_by(judge)
    assert shrink(folder) == 130
    assert size_order(read_entry(folder / "case.json").case) < size_order(clean_case(2))


@pytest.mark.usefixtures("scripted")
def test_shrink_waits_for_a_flaky_finding_to_show_and_reduces_it_against_its_rate(
    tmp_path: Path, judged_by: Judged
) -> None:
    folder = save(tmp_path)
    entry = read_entry(folder / "case.json")
    flaky = msgspec.structs.replace(entry, confirmed=Confirmation(runs=10, reproduced=5))
    write_atomic(folder / "case.json", encode_entry(flaky))
    turns = itertools.cycle([PASS, DIVERGENCE])
    judged_by(lambda _, case: next(turns) if is_wrapped(case) else PASS)
    assert shrink(folder) == 0
    after = read_entry(folder / "case.json")
    assert size_order(after.case) < size_order(entry.case)
    assert after.flaky
