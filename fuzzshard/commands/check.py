"""``fuzzshard check``: a model of the user's own."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from cyclopts import Parameter

from fuzzshard.case.case import EngineName
from fuzzshard.corpus.files import write_atomic
from fuzzshard.errors import (
    EXIT_CLEAN,
    EXIT_FINDING,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    UsageError,
)
from fuzzshard.options import (
    DEFAULT_CORPUS,
    AtLeastOne,
    DeviceHere,
    Duration,
    Folder,
    Json,
    OutputFile,
    Preload,
    RankOptions,
)
from fuzzshard.subject.subject import ASPECTS, SETTINGS, Aspect, Setting, Training

C = TypeVar("C", bound=str)

FunctionName = Annotated[str, Parameter(show_default=False, metavar="FUNCTION")]

if TYPE_CHECKING:
    from fuzzshard.checking.check import Checker
    from fuzzshard.checking.fuzz import Fuzzer
    from fuzzshard.subject.report import Report, TrainingReport
    from fuzzshard.subject.subject import Subject

DEFAULT_SECONDS = 600.0
"""How long a fuzzing run lasts where nobody says so."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Functions:
    """What the model is trained by.

    Parameters
    ----------
    inputs
        inputs(step, dp_rank, dp_size) returns a batch, the same one in every call: a tensor, a
        tuple of arguments or a dict of keyword arguments. Microbatches are further steps.
    loss
        loss(outputs, batch) returns a scalar. By default the sum of the outputs' mean squares.
    parallelize
        parallelize(model, mesh) changes the model or returns another module. Without it,
        fully_shard wraps the repeated blocks and the root, and then DDP wraps the model.
    optimizer
        optimizer(parameters) returns the optimizer. By default AdamW with a learning rate of 1e-3.
    train_step
        train_step(model, optimizer, batches) is a whole training step on the microbatches of a
        rank. The plain model gets those of all data-parallel ranks.
    loss_weight
        loss_weight(batch) is the weight of a batch in the mean over all ranks: its tokens, say.
    smaller
        smaller(size) returns a model of size 1, 2, ...; used to shrink findings of --fuzz.
    save
        save(model, optimizer, folder) saves a training for --resume, as load(model, optimizer,
        folder) loads it into a model and an optimizer that were made anew. By default
        torch.distributed.checkpoint does both.
    load
        See --save.
    map_names
        A JSON file with the parameter names that parallelize changes: {"new.name": "plain.name"}.
        Parameters that it fuses into one are not supported.
    """

    inputs: FunctionName = ""
    loss: FunctionName = ""
    parallelize: FunctionName = ""
    optimizer: FunctionName = ""
    train_step: FunctionName = ""
    loss_weight: FunctionName = ""
    smaller: FunctionName = ""
    save: FunctionName = ""
    load: FunctionName = ""
    map_names: Annotated[Path | None, Parameter(name="--map", show_default=False)] = None

    def subject(self, build: str) -> Subject:
        """Return the model that ``build`` returns, with these functions."""
        from fuzzshard.subject.subject import Subject

        if not build or not self.inputs:
            raise UsageError(
                "a check needs a model and its inputs",
                "for example: fuzzshard check train.py:build --inputs train.py:batch",
            )
        named = dataclasses.asdict(self)
        return Subject(build=build, names=_names(named.pop("map_names")), **named)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """Which trainings are compared.

    Parameters
    ----------
    mesh
        Axes and sizes, such as dp_shard=2 or dp_replicate=2,dp_shard=2. Repeat for several. By
        default dp_shard=2. Ranks along tp, pp, cp, ep and sp get equal data. With --parallelize
        the data axes may have any names.
    engine
        Wrap the model by this engine instead of parallelize. Repeat for several.
    steps
        How many optimizer steps to compare.
    microbatches
        How many forwards and backwards each step has.
    seed
        The seed of the model's values, of dropout and of --fuzz.
    resume
        Before the step of this number (1: the second) save the model and the optimizer, build
        both anew, load, and go on. What comes then must be as if nothing had happened.
    resume_mesh
        Go on with --resume in this mesh, which may have fewer or more ranks.
    full_state_dicts
        With --resume rank 0 saves whole state dicts, which every rank loads.
    global_batch
        Train the plain model on the batches of all ranks as one, as if there were one rank: its
        loss is the one that is due. So a mean over a rank's own tokens shows, a wrong
        normalisation, or a missing factor in a --train-step. Batches are joined along the first
        dimension of their tensors, so pad what is longer in some; train_step gets one batch in a
        world of one rank; rows may meet in the loss alone, not in batch norm. Nothing drops out.
    vary
        Train in each mesh once more with one setting changed: precision (parameters cast to
        bfloat16), compile (the repeated blocks, or the model, by aot_eager before they are
        wrapped), checkpointing (of the blocks); several with commas, or all.
    races
        Also watch the streams of the parallelised model for accesses to one memory that nothing
        orders. On the CPU only fully_shard has streams, which exist in Python.
    """

    mesh: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = ()
    engine: Annotated[tuple[EngineName, ...], Parameter(negative=(), show_default=False)] = ()
    steps: int = 3
    microbatches: int = 1
    seed: int = 0
    resume: Annotated[int, Parameter(show_default=False, metavar="STEP")] = 0
    resume_mesh: Annotated[str, Parameter(show_default=False)] = ""
    full_state_dicts: Annotated[bool, Parameter(negative=())] = False
    global_batch: Annotated[bool, Parameter(negative=())] = False
    races: Annotated[bool, Parameter(negative=())] = False
    vary: Annotated[str, Parameter(show_default=False, metavar="SETTINGS")] = ""

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What is changed, one at a time."""
        return _chosen(self.vary, SETTINGS, "varied")

    def trainings(self, subject: Subject) -> tuple[Training, ...]:
        """Return the trainings of a model; print what is odd about their meshes."""
        from fuzzshard.checking.check import DEFAULT_MESHES, trainings
        from fuzzshard.subject.subject import MeshShape

        meshes = [MeshShape.parse(text) for text in self.mesh] or DEFAULT_MESHES
        other = MeshShape.parse(self.resume_mesh) if self.resume_mesh else None
        options = dataclasses.asdict(self) | {"resume_mesh": other}
        engines = tuple(dict.fromkeys(options.pop("engine")))
        del options["mesh"], options["vary"]
        runs = trainings(subject, meshes, engines, **options)
        shapes = [*meshes, other] if other else meshes
        for doubt in (doubt for mesh in shapes for doubt in mesh.doubts):
            print(f"warning: {doubt}", file=sys.stderr)
        return runs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fuzzing:
    """What changes around the model, and for how long.

    Parameters
    ----------
    fuzz
        Train the model in random ways until --max-time or --max-cases. Says what may change: all,
        or some of plan,freeze,mesh,schedule,precision. With --parallelize, plan and precision
        cannot.
    max_time
        Stop fuzzing after this long: 90s, 10m, 2h. By default 10m.
    max_cases
        Stop fuzzing after this many trainings.
    corpus
        Where to save findings of --fuzz, each in a folder of its own.
    """

    fuzz: Annotated[str, Parameter(show_default=False, metavar="WHAT")] = ""
    max_time: Duration = None
    max_cases: int | None = None
    corpus: Folder = DEFAULT_CORPUS

    @property
    def aspects(self) -> tuple[Aspect, ...]:
        """What may change."""
        return _chosen(self.fuzz, ASPECTS, "fuzzed")

    def check(self, runs: Sequence[Training]) -> None:
        """Raise :class:`UsageError` for what cannot be fuzzed around ``runs``."""
        from fuzzshard.checking.fuzz import check_aspects

        if not self.aspects and (self.max_time or self.max_cases):
            raise UsageError(
                "--max-time and --max-cases are limits of --fuzz",
                "add --fuzz all, or leave them out",
            )
        for option in ("resume", "global_batch") if self.aspects else ():
            if any(getattr(run, option) for run in runs):
                named = f"--{option.replace('_', '-')}"
                raise UsageError(f"--fuzz varies no training with {named}", f"leave out {named}")
        check_aspects(self.aspects, runs)

    def fuzzer(self, checker: Checker, done: Sequence[TrainingReport], seed: int) -> Fuzzer | None:
        """Return what fuzzes around the trainings that are ``done``; None if none can be varied.

        The time that these took counts.
        """
        from fuzzshard.checking.fuzz import Fuzzer, bases_of

        if not (bases := bases_of(done)):
            return None
        limit = self.max_time or (None if self.max_cases else DEFAULT_SECONDS)
        limit = limit and max(0.0, limit - sum(report.seconds for report in done))
        return Fuzzer(
            checker,
            bases,
            self.aspects,
            max_cases=self.max_cases,
            max_time=limit,
            number=seed,
            folder=self.corpus / "own" / ".unfinished",
        )

    def left_out(self, done: Sequence[TrainingReport]) -> list[str]:
        """Return what was to change and cannot, each with the reason."""
        from fuzzshard.checking.fuzz import unvaried

        why = unvaried([report.training for report in done])
        return [f"{aspect} ({why[aspect]})" for aspect in why if aspect in self.aspects]


def check(
    build: FunctionName = "",
    *,
    functions: Annotated[Functions, Parameter(name="*")] = Functions(),
    compared: Annotated[Compared, Parameter(name="*")] = Compared(),
    device: DeviceHere = "auto",
    ranks_per_device: AtLeastOne = 1,
    deadline: Duration = None,
    fuzzing: Annotated[Fuzzing, Parameter(name="*")] = Fuzzing(),
    again: Annotated[Path | None, Parameter(show_default=False)] = None,
    preload: Preload = (),
    junit: OutputFile = None,
    html: OutputFile = None,
    as_json: Json = False,
) -> int:
    """Train your own model twice, plain and parallelised, and compare the two.

    Name functions as module:function or path/to/file.py:function. They are
    imported by the rank processes only. For each mesh, a table says whether
    outputs, loss, gradients, parameters, buffers and the state dict are
    equal, and where they differ first.

    For example:
      fuzzshard check train.py:build --inputs train.py:batch
      fuzzshard check my.train:build --inputs my.train:batch
        --loss my.train:loss --parallelize my.train:apply_fsdp
        --mesh dp_shard=4 --mesh dp_replicate=2,dp_shard=2
      fuzzshard check train.py:build --inputs train.py:batch --fuzz all

    Exit codes:
      0  all is equal, bit for bit or within rounding
      1  a difference, an error of the parallelised model, or a hang
      2  an argument cannot be used
      3  nothing can be judged: the plain model differs from itself, no
         gradient can be compared, or the engine refuses the model
      4  the machine or fuzzshard failed

    Parameters
    ----------
    build
        build() returns the plain model, on the CPU or the meta device.
    ranks_per_device
        How many ranks may share a CUDA device.
    deadline
        How long one training may take before its ranks count as hung. By default 10m.
    again
        Run a saved finding of --fuzz again. This imports and runs the functions that it names.
    junit
        Write a JUnit XML file with a test for each training.
    html
        Write a page with the reports, and both runs side by side where they part.
    as_json
        Print one JSON object for each training.
    """
    from fuzzshard.checking.check import Checker, import_from_here
    from fuzzshard.checking.entry import load
    from fuzzshard.world.world import SUBJECT_SECONDS

    began = time.monotonic()
    runs: tuple[Training, ...]
    if again is not None:
        entry = load(again)
        subject, runs = entry.subject, (entry.report.training,)
        preload = (*map(Path, entry.preload), *preload)
    else:
        subject = functions.subject(build)
        runs = compared.trainings(subject)
    fuzzing.check(runs)
    import_from_here()
    ranks = RankOptions(device=device, ranks_per_device=ranks_per_device, preload=preload)
    config = ranks.config(max(training.size for training in runs), of="mesh")
    with Checker(subject, config, deadline or SUBJECT_SECONDS, began) as checker:
        told = _Told(checker, config.preload, fuzzing.corpus, as_json, junit, html)
        return _check(told, runs, compared.settings, fuzzing, compared.seed)


def _check(
    told: _Told,
    runs: Sequence[Training],
    settings: Sequence[Setting],
    fuzzing: Fuzzing,
    seed: int,
) -> int:
    """Run the trainings, each with every one of the ``settings`` changed as well, and fuzz around
    them if that is asked for and none differs.
    """
    from fuzzshard.checking.fuzz import varied
    from fuzzshard.subject.report import Report

    done: list[TrainingReport] = []
    unvaried: list[str] = []
    try:
        for training in runs:
            done.append(base := _run(told.checker, training))
            told.tell(base)
            for setting in settings:
                changed = varied(base, setting)
                if isinstance(changed, str):
                    unvaried.append(f"{base.training.label}, {setting} ({changed})")
                    continue
                done.append(_run(told.checker, changed))
                told.tell(done[-1])
    except KeyboardInterrupt:
        print(f"interrupted after {len(done)} of {len(runs)} trainings", file=sys.stderr)
        return EXIT_INTERRUPTED
    report = Report(trainings=tuple(done))
    told.sum_up(report, unvaried)
    code = report.exit_code
    if not fuzzing.aspects:
        return code
    fuzzer = fuzzing.fuzzer(told.checker, done, seed)
    if fuzzer is None:
        differs = "differs before anything is changed around it; fix that first"
        why = differs if code == EXIT_FINDING else "could not be judged"
        print(f"nothing is fuzzed: the model {why}", file=sys.stderr)
        return code
    return _fuzz(fuzzer, told, fuzzing.left_out(done)) or code


def _run(checker: Checker, training: Training) -> TrainingReport:
    """Run one training, and say so: it may take minutes."""
    from rich.console import Console

    console, doing = Console(stderr=True), f"training {training.label}"
    if not console.is_terminal:
        print(doing, file=sys.stderr, flush=True)
    with console.status(doing):
        return checker.run(training)


def _fuzz(fuzzer: Fuzzer, told: _Told, left_out: Sequence[str]) -> int:
    """Fuzz, print and save what is found, and sum up."""
    from rich.console import Console

    found, interrupted = 0, False
    if fuzzer.resumes:
        print("going on with the finding that was not shrunk", file=sys.stderr)
    with Console(stderr=True).status("fuzzing") as status:
        fuzzer.on_progress = lambda progress: status.update(f"fuzzing: {progress}")
        try:
            for report in fuzzer.findings():
                found += 1
                told.keep(report, shrunk=fuzzer.shrunk)
        except KeyboardInterrupt:
            interrupted = True
            if (unfinished := fuzzer.unfinished) is not None:
                told.keep(unfinished, shrunk=False)
        fuzzer.clean_up()
    if not told.as_json:
        print(f"{'interrupted: ' if interrupted else ''}{fuzzer.progress}")
        if left_out:
            print(f"not varied: {', '.join(left_out)}")
    if interrupted:
        return EXIT_INTERRUPTED
    if found:
        return EXIT_FINDING
    return EXIT_CLEAN if fuzzer.progress.cases else EXIT_INCONCLUSIVE


@dataclasses.dataclass(frozen=True)
class _Told:
    """Prints reports of what ``checker`` runs, and saves findings."""

    checker: Checker
    preload: tuple[str, ...]
    corpus: Path
    as_json: bool
    junit: Path | None
    html: Path | None

    def sum_up(self, report: Report, unvaried: Sequence[str]) -> None:
        """Print a table of several trainings, and write the files that are asked for."""
        from fuzzshard.report.junit import checks_xml

        if len(report.trainings) > 1 and not self.as_json:
            print("\n".join(["", *report.table()]))
        for line in unvaried if not self.as_json else ():
            print(f"not varied: {line}")
        if self.junit is not None:
            write_atomic(self.junit, checks_xml(report.trainings))
        if self.html is not None:
            from fuzzshard.report.html.checks import checks_page

            write_atomic(self.html, checks_page(report.trainings).encode())

    def tell(self, report: TrainingReport, folder: Path | None = None) -> None:
        """Print a report; stacks are in its JSON, or in a file in ``folder`` or one of their
        own.
        """
        if self.as_json:
            print(msgspec.json.encode(report.brief).decode(), flush=True)
            return
        print("\n".join(report.lines()), flush=True)
        if report.stacks:
            file = (folder or Path(tempfile.mkdtemp(prefix="fuzzshard-"))) / "stacks.txt"
            file.write_text(report.stacks)
            print(f"  stacks of these ranks: {file}", flush=True)

    def keep(self, report: TrainingReport, *, shrunk: bool) -> None:
        """Save a finding and print it."""
        from fuzzshard.checking.entry import SubjectEntry, save
        from fuzzshard.checking.subject_script import no_script, script

        subject = self.checker.subject
        entry = SubjectEntry(
            subject=subject,
            report=msgspec.structs.replace(report, stacks="", side_by_side=()),
            preload=self.preload,
            torch=self.checker.torch,
            shrunk=shrunk,
        )
        folder = save(self.corpus, entry, script(subject, report, self.preload))
        self.tell(report, folder)
        if self.as_json:
            return
        print(f"  saved: {folder}\n  again: fuzzshard check --again {folder}")
        if not shrunk:
            print("  not shrunk: the same command goes on with it")
        if why := no_script(subject, report.training):
            print(f"  no script: {why}")
        sys.stdout.flush()


def _chosen(text: str, known: tuple[C, ...], what: str) -> tuple[C, ...]:
    """Return those of the ``known`` words that an option names: all, or some with commas."""
    named = known if text == "all" else tuple(filter(None, text.split(",")))
    if unknown := [name for name in named if name not in known]:
        raise UsageError(f"{unknown[0]!r} cannot be {what}", f"use all, or {', '.join(known)}")
    return tuple(name for name in known if name in named)


def _names(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"{path}, given with --map, cannot be read: {reason}",
            'write {"new.name": "plain.name"} in JSON',
        ) from error
