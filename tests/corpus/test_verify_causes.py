"""``corpus verify --causes``: on entries of our own with real ranks, and what it says of
others.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import fuzzshard
from msgspec.structs import replace
from verdicts import PASS, TORCH, divergence, entry

from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import Expected, expected
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.store import entry_files
from fuzzshard.corpus.verify import Condition, Verified, verify_cause
from fuzzshard.mending.mend import mends_for
from fuzzshard.verdict import Status, Verdict

FINDINGS = Path(__file__).parents[2] / "corpus" / "findings"
LATE = "list_group_unshards_late"
ANOTHER = "fsdp1_order_error_is_a_key_error"

SHOWN, OTHER = divergence(), divergence("output")


@pytest.fixture
def own_entry(tmp_path: Path) -> Path:
    """A copy of the smallest entry of our own that names a mend of lists of modules as its
    cause.
    """
    entries = {file: read_entry(file) for file in entry_files([FINDINGS])}
    named = {file: e for file, e in entries.items() if e.cause == LATE and e.case.mesh.size == 2}
    assert named
    known = [file for file, e in named.items() if expected(e, TORCH, "cpu") is Expected.FINDING]
    if not known:
        pytest.skip(f"none is known to fail under torch {TORCH}")
    file = min(known, key=lambda file: file.stat().st_size)
    return Path(shutil.copytree(file.parent, tmp_path / file.parent.name))


def test_an_entry_fails_on_torch_as_it_is_and_passes_with_the_mend_that_it_names(
    own_entry: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verify = ("corpus", "verify", own_entry, "--causes", "--device", "cpu")
    assert fuzzshard(*verify) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first == f"OK          {own_entry}  {LATE}"
    assert last == "verified 1: 1 OK; 1 cause"
    assert fuzzshard("corpus", "mark", own_entry, "--cause", ANOTHER) == 0
    capsys.readouterr()
    assert fuzzshard(*verify) == 3
    why = f"with its mend, torch shows {read_entry(own_entry / 'case.json').signature}"
    assert capsys.readouterr().out.splitlines()[0] == f"UNSHOWN     {own_entry}  {ANOTHER}  {why}"


class FakeWorld:
    """Shows one verdict on torch as it is, one with a mend alone, and one with all; that of torch
    as it is with all but the mend, too, unless ``cures`` is among them.
    """

    def __init__(
        self, stock: Verdict, one: Verdict = PASS, every: Verdict = PASS, cures: str = LATE
    ) -> None:
        self.info = {"torch": TORCH, "backend": "gloo"}
        self._verdicts = {0: stock, 1: one, len(mends_for()): every}
        self._cures = cures
        self.stock = stock

    def run(
        self, case: Case, *, deadline: float | None = None, mends: tuple[str, ...] = ()
    ) -> Verdict:
        if mends == (LATE,) or len(mends) in (0, len(mends_for())):
            return self._verdicts[len(mends)]
        return PASS if self._cures in mends else self.stock

    def restart(self) -> None:
        pass


def caused(**changes: object) -> CorpusEntry:
    return entry(torch=TORCH, **{"cause": LATE, **changes})


def verified(world: FakeWorld, entry: CorpusEntry, *, num_ranks: int = 2) -> tuple[Condition, str]:
    result = verify_cause(world, Path("here"), entry, "cpu", num_ranks, mends_for(), TORCH)
    assert (result.path, result.cause) == (Path("here"), entry.cause)
    return result.condition, result.message


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (FakeWorld(PASS), "torch as it is shows PASS, not divergence/fully_shard/gradient"),
        (
            FakeWorld(OTHER),
            "torch as it is shows divergence/fully_shard/output, not divergence/fully",
        ),
        (FakeWorld(SHOWN, SHOWN), "with its mend, torch shows divergence/fully_shard/gradient"),
        (FakeWorld(SHOWN, OTHER), "with its mend, torch shows divergence/fully_shard/output"),
        (
            FakeWorld(SHOWN, PASS, OTHER),
            "with all mends, torch shows divergence/fully_shard/output",
        ),
        (FakeWorld(SHOWN, Verdict(status=Status.INFRA, message="fire")), "fire"),
    ],
)
def test_what_does_not_hold_is_said(world: FakeWorld, message: str) -> None:
    condition, said = verified(world, caused())
    assert condition is Condition.UNSHOWN
    assert said.startswith(message)


def test_an_entry_that_passes_without_its_mend_belongs_to_another_one() -> None:
    world = FakeWorld(SHOWN, cures=ANOTHER)
    said = f"it passes with {ANOTHER} alone"
    assert verified(world, caused()) == (Condition.UNNEEDED, said)


def test_ranks_that_are_lost_do_not_show_that_a_mend_is_not_needed() -> None:
    class Losing(FakeWorld):
        def run(
            self, case: Case, *, deadline: float | None = None, mends: tuple[str, ...] = ()
        ) -> Verdict:
            if len(mends) == len(mends_for()) - 1:
                return Verdict(status=Status.INFRA, message="fire")
            return super().run(case, deadline=deadline, mends=mends)

    assert verified(Losing(SHOWN), caused()) == (Condition.OK, "")


@pytest.mark.parametrize("lost", [0, 1], ids=["on stock torch", "with mends"])
def test_a_run_whose_ranks_are_lost_is_tried_once_more(lost: int) -> None:
    class LosingOnce(FakeWorld):
        has_lost = False

        def run(
            self, case: Case, *, deadline: float | None = None, mends: tuple[str, ...] = ()
        ) -> Verdict:
            if len(mends) == lost and not self.has_lost:
                self.has_lost = True
                return Verdict(status=Status.INFRA, message="fire")
            return super().run(case, deadline=deadline, mends=mends)

    assert verified(LosingOnce(SHOWN), caused()) == (Condition.OK, "")


@pytest.mark.parametrize(
    ("cause", "message"), [("", "it names no cause"), ("nowhere", "there is no mend 'nowhere'")]
)
def test_an_entry_without_a_mend_is_not_shown(cause: str, message: str) -> None:
    assert verified(FakeWorld(SHOWN), caused(cause=cause)) == (Condition.UNSHOWN, message)


def test_an_unneeded_mend_is_exit_code_3(
    own_entry: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unneeded(world: object, path: Path, *arguments: object) -> Verified:
        return Verified(path, Condition.UNNEEDED)

    monkeypatch.setattr("fuzzshard.commands.corpus.verify_cause", unneeded)
    assert fuzzshard("corpus", "verify", own_entry, "--causes", "--device", "cpu") == 3
    assert "1 UNNEEDED" in capsys.readouterr().out


@pytest.mark.parametrize(
    "cured", [PASS, Verdict(status=Status.REJECTED), replace(SHOWN, tripped=(LATE,))]
)
def test_a_mend_makes_it_pass_or_be_refused_or_is_tripped(cured: Verdict) -> None:
    assert verified(FakeWorld(SHOWN, cured, cured), caused()) == (Condition.OK, "")


def test_what_another_tripwire_tells_is_not_its_cause() -> None:
    other = replace(SHOWN, tripped=(ANOTHER,))
    assert verified(FakeWorld(SHOWN, other), caused())[0] is Condition.UNSHOWN


def test_what_cannot_be_seen_here_is_not_run() -> None:
    assert verified(FakeWorld(PASS), caused(), num_ranks=1) == (
        Condition.NOT_RUN,
        "the mesh (shard 2) needs 2 ranks, not 1",
    )
    elsewhere = caused(bad_on=("2.10.0",), good_on=(TORCH,))
    assert verified(FakeWorld(PASS), elsewhere)[1] == f"not known to be in torch {TORCH}"


def test_a_corpus_without_findings_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_atomic(
        tmp_path / "case.json", encode_entry(replace(caused(), signature="", status=Status.PASS))
    )
    assert fuzzshard("corpus", "verify", tmp_path, "--causes", "--device", "cpu") == 0
    assert capsys.readouterr().out == "verified 0: no findings; 0 causes\n"


@pytest.mark.parametrize("options", [("--causes", "--run"), ("--worlds", "2")])
def test_options_that_do_not_go_together_are_one_line(
    tmp_path: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzzshard("corpus", "verify", tmp_path, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--causes" in line
