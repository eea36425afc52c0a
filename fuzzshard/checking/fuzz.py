"""Fuzzing around a model of the user's own: draw, run, shrink, confirm."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, assume, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from fuzzshard.case.paths import is_within
from fuzzshard.checking.check import Checker
from fuzzshard.errors import UsageError
from fuzzshard.program.engine_script import engine_script
from fuzzshard.subject.report import TrainingReport, module_of
from fuzzshard.subject.subject import ASPECTS, Aspect, Outline, Setting, Training, Variation

SHRINK_RUNS = 150
"""How many trainings shrinking one finding may take."""

CONFIRMING_RUNS = 3

MOST_SIZES = 4
"""The largest size that ``smaller`` is asked for."""


class _Found(Exception):
    """A finding that is not known yet, by which Hypothesis shrinks."""


class _Over(BaseException):
    """No more is to be run: Hypothesis lets this through."""


@dataclasses.dataclass
class FuzzProgress:
    """What a fuzzing run has done so far.

    ``refused`` counts trainings that make no sense for the model: too short, all frozen.
    ``unsteady`` counts findings that stayed away on fresh ranks.
    """

    cases: int = 0
    refused: int = 0
    shrinking: int = 0
    unsteady: int = 0
    known: set[str] = dataclasses.field(default_factory=set)
    covered: set[str] = dataclasses.field(default_factory=set)

    def __str__(self) -> str:
        known = len(self.known)
        said = [f"{self.cases} trainings", f"{known} distinct finding{'s' * (known != 1)}"]
        said += [f"{self.refused} made no sense for this model"] * bool(self.refused)
        said += [f"{self.unsteady} findings did not repeat"] * bool(self.unsteady)
        return f"{', '.join(said)}; covered: {', '.join(sorted(self.covered)) or 'nothing'}"


def bases_of(done: Sequence[TrainingReport]) -> tuple[TrainingReport, ...]:
    """Return the trainings of a check that can be varied: the equal ones, none if one differs."""
    if any(report.is_finding for report in done):
        return ()
    return tuple(report for report in done if report.outcome == "equal")


class Fuzzer:
    """Draws trainings around those of ``bases`` until ``max_cases`` have run or ``max_time`` is
    over.

    What is found is in ``folder``, if that is given, until it is shrunk and confirmed: the same
    fuzzing of the same subject goes on with it. ``on_progress`` is told after each training.
    """

    def __init__(
        self,
        checker: Checker,
        bases: Sequence[TrainingReport],
        aspects: Collection[Aspect],
        *,
        max_cases: int | None,
        max_time: float | None,
        number: int,
        folder: Path | None = None,
    ) -> None:
        self.progress = FuzzProgress()
        self._checker = checker
        around = [report.training for report in bases]
        self._blocks = bases[0].outline.blocks
        self._strategy = trainings_around(bases[0].outline, around, aspects)
        drawn_from = (checker.subject, bases[0].outline, around, sorted(aspects))
        self._key = hashlib.sha256(msgspec.json.encode(drawn_from)).hexdigest()[:16]
        self._folder = None if folder is None else folder / self._key
        self._max_cases = max_cases
        self._until = None if max_time is None else time.monotonic() + max_time
        self._number = number
        self._reports: dict[bytes, TrainingReport | None] = {}
        self._goes_on = False
        self.unfinished: TrainingReport | None = None
        """The finding that is being shrunk, for whoever interrupts that."""
        self.on_progress: Callable[[FuzzProgress], object] = lambda _: None

    @property
    def shrunk(self) -> bool:
        """Whether there was time to shrink the finding that was yielded last."""
        return not self._is_out_of_time()

    @property
    def resumes(self) -> bool:
        """Whether it begins with a finding that was interrupted."""
        return self._folder is not None and self._folder.is_dir()

    def findings(self) -> Iterator[TrainingReport]:
        """Yield each kind of finding once, shrunk and confirmed on fresh ranks.

        It ends early where there is nothing left to draw.
        """
        while not self._is_over():
            self.unfinished, self.progress.shrinking, run_before = None, 0, len(self._reports)
            with contextlib.suppress(_Found, _Over):
                self._hunt()
            if self.unfinished is None:
                if len(self._reports) == run_before:
                    return
                continue
            self.progress.known.add(self.unfinished.signature)
            self.unfinished = found = self._cut(self.unfinished)
            training = msgspec.structs.replace(found.training, operators=True)
            again = [self._run(training, fresh=True) for _ in range(CONFIRMING_RUNS)]
            is_steady = all(report.signature == found.signature for report in again)
            self.unfinished = None
            self._goes_on = is_steady and not self.shrunk
            self.clean_up()
            self.progress.unsteady += not is_steady
            if is_steady:
                limits = (*again[-1].limits, *self._uncut)
                yield msgspec.structs.replace(again[-1], limits=limits)

    def clean_up(self) -> None:
        """Remove what Hypothesis has saved, unless the next run is to go on with a finding."""
        if self._folder is not None and not self._goes_on and self.unfinished is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # not there, or of another fuzzing, too
                self._folder.parent.rmdir()

    def _hunt(self) -> None:
        """Draw until something new is found, shrink it, and raise it."""
        self._number += 1
        key = self._key.encode()
        database = None if self._folder is None else DirectoryBasedExampleDatabase(self._folder)
        if database is not None:  # what Hypothesis finds at this key is to it as small as can be
            for drawn in tuple(database.fetch(key)):
                database.move(key, key + b".secondary", drawn)

        @settings(  # outside of @seed, which takes the database away
            max_examples=200,
            database=database,
            deadline=None,
            phases=(Phase.reuse, Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            print_blob=False,
            report_multiple_bugs=False,
        )
        @seed(self._number)
        @given(self._strategy)
        def run(training: Training) -> None:
            self._try(training)

        vars(run)["_hypothesis_internal_database_key"] = key
        run()

    def _try(self, training: Training) -> None:
        report = self._report(training)
        assume(report is not None)
        assert report is not None
        hunted = self.unfinished is None and report.signature not in self.progress.known
        shrinks = self.unfinished is not None and report.signature == self.unfinished.signature
        if not report.is_finding or not (hunted or shrinks):
            return
        self.unfinished = report
        raise _Found(report.signature)

    def _report(self, training: Training) -> TrainingReport | None:
        """Return what a training comes to, each run once; None for one that makes no sense."""
        key = msgspec.json.encode(training)
        if key not in self._reports:
            if self.unfinished is not None:
                self.progress.shrinking += 1
                if self.progress.shrinking > SHRINK_RUNS or self._is_out_of_time():
                    return None
            elif self._is_over():
                raise _Over
            try:
                self._reports[key] = self._run(training)
                self.progress.covered |= set(_features(training))
            except UsageError:
                self._reports[key] = None
                self.progress.refused += 1
            self.progress.cases += self.unfinished is None
            self.on_progress(self.progress)
        return self._reports[key]

    def _run(self, training: Training, *, fresh: bool = False) -> TrainingReport:
        """Return what a training comes to, with the blocks that it wraps, which no error tells."""
        report, variation = self._checker.run(training, fresh=fresh), training.variation
        blocks = self._blocks if variation.wrapped is None else variation.wrapped
        if report.outcome in ("error", "hang") and engine_script(training.engine).wraps_blocks:
            report = msgspec.structs.replace(report, blocks=variation.kept(blocks))
        return report

    def _is_over(self) -> bool:
        if self._max_cases is not None and self.progress.cases >= self._max_cases:
            return True
        return self._is_out_of_time()

    def _is_out_of_time(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    @property
    def _uncut(self) -> tuple[str, ...]:
        """Why no module is cut out, if none can be."""
        if not self._checker.subject.parallelize:
            return ()
        return ("no module is cut out of the model, since parallelize needs the whole one",)

    def _cut(self, report: TrainingReport) -> TrainingReport:
        """Return the same finding with the smallest model that ``smaller`` gives, or with one
        module of the model alone, as far within as one shows it.

        The module is trained with a loop and a loss of ours (:attr:`Subject.of_one_module`).
        """
        for variation in self._cuts(report):
            cut = self._report(msgspec.structs.replace(report.training, variation=variation))
            if cut is not None and cut.signature == report.signature:
                return self._cut(cut)
        return report

    def _cuts(self, report: TrainingReport) -> Iterator[Variation]:
        variation = report.training.variation
        if self._checker.subject.smaller and not (variation.size or variation.only):
            for size in range(1, MOST_SIZES + 1):
                yield msgspec.structs.replace(variation, size=size, depth=0)
        if not self._uncut:
            yield from cuts(report)


def cuts(report: TrainingReport) -> Iterator[Variation]:
    """Yield variations that train one module alone, which may show a finding: smallest first.

    Such modules hold what differs first; where an engine raises or hangs, what is changed. Within
    a module that is cut out already they are all modules. Where all that is frozen is outside of
    a module, its first parameter is tried in its place.
    """
    variation, found, outline = report.training.variation, report.difference, report.outline
    modules, parameters = map(variation.whole_names, (outline.modules, outline.parameters))
    changed = (*variation.frozen, *(variation.wrapped or ()), *variation.checkpointed)
    named = [module_of(found.name)] if found else []
    names = variation.whole_names(named) or changed
    around = [m for m in modules if any(is_within(name, m) for name in names)]
    sizes = {module: sum(is_within(m, module) for m in modules) for module in modules}
    for module in sorted(modules if variation.only else around, key=sizes.__getitem__):
        yield msgspec.structs.replace(variation, only=module)
        if variation.frozen and not any(is_within(name, module) for name in variation.frozen):
            within = [name for name in parameters if is_within(name, module)]
            if len(within) > 1:
                yield msgspec.structs.replace(variation, only=module, frozen=(within[0],))


def _features(training: Training) -> Iterator[str]:
    yield f"mesh {training.mesh}"
    yield training.engine or "parallelize"
    for field, value in msgspec.structs.asdict(training.variation).items():
        if value and field != "lists":  # which say what depth cuts
            yield field


MOST_NAMES = 3


def unvaried(runs: Sequence[Training]) -> dict[Aspect, str]:
    """Return what cannot vary around ``runs``, and why."""
    why: dict[Aspect, str] = {}
    if not any(engine_script(run.engine).wraps_blocks for run in runs):
        engines = " and ".join(dict.fromkeys(run.engine for run in runs))
        reason = "parallelize wraps the model"
        if all(run.engine for run in runs):
            reason = f"{engines} has no such options"
        why |= {"plan": reason, "precision": reason}
    if len({str(run.mesh) for run in runs}) == 1:
        why["mesh"] = "there is only one"
    return why


def varied(report: TrainingReport, setting: Setting) -> Training | str:
    """Return a training with one setting changed, or why there is none."""
    training, blocks = report.training, report.outline.blocks
    change: dict[str, object] = {"compiled": blocks or ("",)}
    if report.outcome not in ("equal", "different"):
        return "the training itself cannot be compared"
    if setting == "precision":
        if why := unvaried([training]).get("precision"):
            return why
        change = {"param_dtype": "bfloat16"}
    if setting == "checkpointing":
        if not blocks:
            return "the model has no repeated blocks"
        change = {"checkpointed": blocks}
    variation = msgspec.structs.replace(training.variation, **change)
    return msgspec.structs.replace(training, variation=variation, repeat=False)


def check_aspects(aspects: Collection[Aspect], runs: Sequence[Training]) -> None:
    """Raise :class:`UsageError` for an aspect that is named and cannot vary.

    Where all are, those that can are meant.
    """
    if set(aspects) == set(ASPECTS):
        return
    for aspect, why in unvaried(runs).items():
        if aspect in aspects:
            remedy = "name another with --mesh" if aspect == "mesh" else "leave it out"
            raise UsageError(f"--fuzz cannot vary the {aspect}: {why}", remedy)


@st.composite
def trainings_around(
    draw: st.DrawFn,
    outline: Outline,
    bases: Sequence[Training],
    aspects: Collection[Aspect],
) -> Training:
    """Draw a training that differs from one of ``bases`` in ``aspects``.

    It shrinks to the first base with few blocks, one step and nothing else changed. ``mesh``
    chooses among the meshes of all bases; without it there is the first one's.
    """
    varies = "mesh" in aspects
    base = draw(st.sampled_from([b for b in bases if varies or b.mesh == bases[0].mesh]))
    depth = draw(st.integers(1, outline.depth)) if outline.lists else 0
    plan, freeze, schedule = (aspect in aspects for aspect in ("plan", "freeze", "schedule"))
    wraps = engine_script(base.engine).wraps_blocks
    casts = wraps and "precision" in aspects
    microbatches = draw(st.integers(1, 3)) if schedule else base.microbatches
    return Training(
        mesh=base.mesh,
        engine=base.engine,
        seed=base.seed,
        races=base.races,
        repeat=False,
        operators=False,
        steps=draw(st.integers(1, 3 if schedule else base.steps)),
        microbatches=microbatches,
        variation=Variation(
            depth=depth,
            lists=outline.lists,
            wrapped=draw(_wrapped(outline)) if plan and wraps else None,
            reshard=draw(st.sampled_from((None, True, False))) if plan and wraps else None,
            frozen=draw(_names((*outline.modules, *outline.parameters))) if freeze else (),
            checkpointed=draw(_names(outline.blocks)) if schedule else (),
            unsynced=schedule and microbatches > 1 and draw(st.booleans()),
            evaluates=schedule and draw(st.booleans()),
            param_dtype=draw(st.sampled_from(("", "bfloat16"))) if casts else "",
        ),
    )


def _wrapped(outline: Outline) -> st.SearchStrategy[tuple[str, ...] | None]:
    """Modules below the root, those within others first, as they have to be wrapped."""
    if not outline.wrappable:
        return st.none()
    some = st.sets(st.sampled_from(outline.wrappable), max_size=2 * MOST_NAMES)
    order = {name: position for position, name in enumerate(outline.modules)}
    return st.none() | some.map(
        lambda names: tuple(sorted(names, key=order.__getitem__, reverse=True))
    )


def _names(names: Sequence[str]) -> st.SearchStrategy[tuple[str, ...]]:
    if not names:
        return st.just(())
    few = st.sets(st.sampled_from(names), max_size=MOST_NAMES)
    return st.just(()) | few.map(lambda chosen: tuple(sorted(chosen)))
