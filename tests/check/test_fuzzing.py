"""Fuzzing around a user's model: a planted bug of torch is found, shrunk, saved, shown again."""

from pathlib import Path

import msgspec
import pytest

from fuzzshard import reproducer
from fuzzshard.checking.check import Checker, trainings
from fuzzshard.checking.entry import SubjectEntry, load, save
from fuzzshard.checking.fuzz import Fuzzer, FuzzProgress, bases_of, check_aspects, cuts, unvaried
from fuzzshard.checking.subject_script import no_script, script
from fuzzshard.errors import InvalidEntry, UsageError
from fuzzshard.reproducer.forked import ForkedRanks
from fuzzshard.subject.report import TrainingReport
from fuzzshard.subject.subject import (
    ASPECTS,
    Aspect,
    MeshShape,
    Outline,
    Subject,
    Training,
    Variation,
)
from fuzzshard.world import WorldConfig

HERE = Path(__file__).parent
FAULT = str(HERE / "faults" / "doubles_beside_frozen.py")
SUBJECT = Subject(
    build=f"{HERE}/small.py:build", inputs=f"{HERE}/small.py:batch", loss=f"{HERE}/small.py:loss"
)
BASES = trainings(
    SUBJECT, [MeshShape({"dp_shard": 2})], ["fully_shard"], steps=2, microbatches=1, seed=3
)


def found_by_varying(aspects: tuple[Aspect, ...]) -> TrainingReport:
    with Checker(SUBJECT, WorldConfig(size=2, preload=(FAULT,)), 120) as checker:
        baseline = checker.run(BASES[0])
        assert baseline.outcome == "equal", str(baseline)
        fuzzer = Fuzzer(checker, [baseline], aspects, max_cases=300, max_time=None, number=1)
        return next(fuzzer.findings())


@pytest.fixture(scope="module")
def found() -> TrainingReport:
    return found_by_varying(("freeze",))


def test_a_planted_bug_is_shrunk_to_one_module_with_one_frozen_parameter(
    found: TrainingReport,
) -> None:
    assert_is_small(found)


@pytest.mark.slow
def test_a_planted_bug_is_found_and_shrunk_where_all_aspects_vary() -> None:
    assert_is_small(found_by_varying(ASPECTS))


def assert_is_small(found: TrainingReport) -> None:
    variation = found.training.variation
    assert (found.training.steps, found.training.microbatches) == (1, 1)
    assert variation.depth == 1
    assert variation.only == "layers.0.norm"
    assert len(variation.frozen) == 1
    assert not variation.checkpointed
    assert found.difference is not None
    assert "2.00 times the expected" in found.difference.looks_like
    assert found.operator is not None
    assert found.operator.how == "none"


def test_within_a_module_that_is_cut_out_all_others_are_tried_smallest_first() -> None:
    variation = Variation(only="layer", frozen=("layer.attention.q",))
    report = TrainingReport(
        training=msgspec.structs.replace(BASES[0], variation=variation),
        outcome="error",
        outline=Outline(
            modules=("attention", "attention.rope", "ffn", "ffn.up", "ffn.down", "norm"),
            parameters=("attention.q", "attention.k", "ffn.up.w", "ffn.up.b", "norm.w"),
        ),
    )
    tried = [(cut.only, cut.frozen) for cut in cuts(report)]
    frozen = variation.frozen
    assert tried == [
        ("layer.attention.rope", frozen),
        ("layer.ffn.up", frozen),
        ("layer.ffn.up", ("layer.ffn.up.w",)),
        ("layer.ffn.down", frozen),
        ("layer.norm", frozen),
        ("layer.attention", frozen),
        ("layer.ffn", frozen),
        ("layer.ffn", ("layer.ffn.up.w",)),
    ]


@pytest.mark.slow
def test_its_script_fails_where_the_bug_is(found: TrainingReport, tmp_path: Path) -> None:
    path = tmp_path / "repro.py"
    path.write_text(script(SUBJECT, found, (FAULT,)))
    result = reproducer.check(path, 2)
    assert result.fails
    assert "gradient of " in result.output


def found_with_freezes(subject: Subject) -> TrainingReport:
    """What freezes around a subject show first, where the planted bug is."""
    with Checker(subject, WorldConfig(size=2, preload=(FAULT,)), 120) as checker:
        engines = () if subject.parallelize else ["fully_shard"]
        mesh = MeshShape({"dp_shard": 2})
        (run,) = trainings(subject, [mesh], engines, steps=2, microbatches=1, seed=3)
        fuzzer = Fuzzer(
            checker, [checker.run(run)], ("freeze",), max_cases=300, max_time=None, number=1
        )
        return next(fuzzer.findings())


@pytest.mark.slow
def test_a_module_is_cut_out_of_a_model_with_a_loop_and_weights_of_the_users(
    run_script: ForkedRanks,
) -> None:
    """The bug shows without the loop, so that the script needs it no more."""
    functions = {field: f"{HERE}/small.py:{field}" for field in ("train_step", "loss_weight")}
    subject = msgspec.structs.replace(SUBJECT, loss="", **functions)
    report = found_with_freezes(subject)
    assert report.training.variation.only == "layers.0.norm"
    text = script(subject, report, (FAULT,))
    assert "train_step = load" not in text
    result = run_script(text, 2)
    assert result.fails
    assert "gradient of " in result.output


@pytest.mark.slow
def test_with_a_parallelize_the_smallest_model_of_the_users_is_in_the_finding(
    run_script: ForkedRanks,
) -> None:
    functions = {field: f"{HERE}/small.py:{field}" for field in ("parallelize", "smaller")}
    subject = msgspec.structs.replace(SUBJECT, **functions)
    report = found_with_freezes(subject)
    variation = report.training.variation
    assert (variation.size, variation.depth, variation.only) == (1, 0, "")
    assert "no module is cut out" in str(report.limits)
    result = run_script(script(subject, report, (FAULT,)), 2)
    assert result.fails
    assert "gradient of " in result.output


@pytest.mark.slow
def test_a_script_finds_modules_of_the_folder_it_was_written_in(
    run_script: ForkedRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Subject(build="small:build", inputs="small:batch", loss="small:loss")
    report = TrainingReport(training=BASES[0], outcome="equal")
    monkeypatch.chdir(HERE)
    assert "trains as the plain one does" in run_script(script(subject, report, ()), 2).output


def test_where_there_is_no_script_a_line_says_why(found: TrainingReport) -> None:
    renamed = msgspec.structs.replace(SUBJECT, names={"a": "b"})
    weighted = msgspec.structs.replace(SUBJECT, loss_weight="train.py:num_tokens")
    whole = msgspec.structs.replace(found.training, variation=Variation())
    flat = msgspec.structs.replace(whole, engine="fsdp1")
    assert "--map" in no_script(renamed, whole)
    assert "--loss-weight" in no_script(weighted, whole)
    assert "flat parameters of fsdp1" in no_script(SUBJECT, flat)
    assert no_script(SUBJECT, whole) == no_script(weighted, found.training) == ""


def test_what_is_not_judged_is_not_fuzzed_and_is_not_called_different(
    found: TrainingReport,
) -> None:
    equal = msgspec.structs.replace(found, outcome="equal", difference=None)
    refused = msgspec.structs.replace(equal, outcome="not judged")
    assert bases_of([refused, equal]) == (equal,)
    assert bases_of([equal, found]) == bases_of([refused]) == ()


def test_of_all_aspects_those_that_cannot_vary_are_named() -> None:
    (own,) = (msgspec.structs.replace(run, engine="") for run in BASES)
    wider = msgspec.structs.replace(BASES[0], mesh=MeshShape({"dp_shard": 4}))
    assert unvaried([BASES[0], wider]) == {}
    assert unvaried([own]).keys() == {"plan", "precision", "mesh"}
    assert unvaried([msgspec.structs.replace(BASES[0], engine="ddp")])["plan"].startswith(
        "ddp has"
    )
    check_aspects(ASPECTS, [own])
    with pytest.raises(UsageError, match="cannot vary the precision"):
        check_aspects(("freeze", "precision"), [own])


def test_what_is_saved_is_read_again(found: TrainingReport, tmp_path: Path) -> None:
    entry = SubjectEntry(subject=SUBJECT, report=found, preload=(FAULT,), torch="2.15.0")
    folder = save(tmp_path, entry, "print()")
    assert load(folder) == entry
    assert load(folder / "subject.json") == entry
    assert (folder / "repro.py").read_text() == "print()"
    (folder / "subject.json").write_text('{"format": 1}')
    with pytest.raises(InvalidEntry, match="is no saved finding"):
        load(folder)


@pytest.mark.slow
def test_findings_of_one_kind_are_told_once(found: TrainingReport) -> None:
    with Checker(SUBJECT, WorldConfig(size=2, preload=(FAULT,)), 120) as checker:
        baseline = checker.run(BASES[0])
        fuzzer = Fuzzer(checker, [baseline], ("freeze",), max_cases=12, max_time=None, number=1)
        signatures = [report.signature for report in fuzzer.findings()]
    assert signatures == [found.signature]
    assert fuzzer.progress.cases == 12


class FakeChecker(Checker):
    """Finds the planted bug wherever something is frozen, without ranks."""

    def __init__(self) -> None:
        self.subject = SUBJECT
        self.ran: list[Training] = []

    def run(self, training: Training, *, fresh: bool = False) -> TrainingReport:
        self.ran.append(training)
        outline = Outline(parameters=tuple(f"layers.{i}.weight" for i in range(9)))
        outcome = "error" if training.variation.frozen else "equal"
        return TrainingReport(training=training, outcome=outcome, outline=outline)


def test_the_script_of_an_error_wraps_what_the_training_wrapped() -> None:
    checker = FakeChecker()
    outline = Outline(
        modules=("layers.0",), blocks=("layers.0", "layers.1"), lists=("layers",), depth=2
    )
    base = msgspec.structs.replace(checker.run(BASES[0]), outline=outline)
    fuzzer = Fuzzer(checker, [base], ("freeze",), max_cases=300, max_time=None, number=1)
    found = next(fuzzer.findings())
    assert (found.training.variation.depth, found.blocks) == (1, ("layers.0",))
    assert "fully_shard(model.get_submodule('layers.0')" in script(SUBJECT, found, ())


def test_nothing_that_varied_stays_but_what_a_finding_needs() -> None:
    checker = FakeChecker()
    base = checker.run(BASES[0])
    fuzzer = Fuzzer(checker, [base], ASPECTS, max_cases=300, max_time=None, number=1)
    training = next(fuzzer.findings()).training
    assert (training.steps, training.microbatches) == (1, 1)
    assert training.variation == Variation(frozen=training.variation.frozen)
    assert len(training.variation.frozen) == 1
    varied = [run.variation for run in checker.ran if run.variation != Variation()]
    assert not all(v == Variation(frozen=v.frozen) for v in varied)


def test_a_finding_that_was_interrupted_while_it_shrank_comes_first_next_time(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "unfinished"

    def fuzzer(checker: FakeChecker, aspects: tuple[Aspect, ...] = ("freeze",)) -> Fuzzer:
        base = checker.run(BASES[0])
        checker.ran.clear()
        return Fuzzer(
            checker, [base], aspects, max_cases=50, max_time=None, number=1, folder=folder
        )

    def interrupt(progress: FuzzProgress) -> None:
        if progress.shrinking == 2:
            raise KeyboardInterrupt

    first = fuzzer(FakeChecker())
    first.on_progress = interrupt
    with pytest.raises(KeyboardInterrupt):
        next(first.findings())
    assert first.unfinished is not None
    first.clean_up()
    assert fuzzer(FakeChecker()).resumes
    other = FakeChecker()
    next(fuzzer(other, ("freeze", "precision")).findings())
    assert not other.ran[0].variation.frozen
    again = FakeChecker()
    report = next(fuzzer(again).findings())
    assert again.ran[0].variation.frozen
    assert len(report.training.variation.frozen) == 1
    assert not folder.exists()
    done = FakeChecker()
    assert not fuzzer(done).resumes
    next(fuzzer(done).findings())
    assert not done.ran[0].variation.frozen


def test_an_interrupt_between_findings_leaves_no_folder(tmp_path: Path) -> None:
    def interrupt(progress: FuzzProgress) -> None:
        if progress.cases == 3:
            raise KeyboardInterrupt

    checker, folder = FakeChecker(), tmp_path / "unfinished"
    base = checker.run(BASES[0])
    fuzzer = Fuzzer(
        checker, [base], ("schedule",), max_cases=9, max_time=None, number=1, folder=folder
    )
    fuzzer.on_progress = interrupt
    with pytest.raises(KeyboardInterrupt):
        next(fuzzer.findings())
    folder.mkdir(exist_ok=True)
    fuzzer.clean_up()
    assert not folder.exists()
