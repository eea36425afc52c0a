"""Runs the trainings of a check, each in a world of its size."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fuzzshard.errors import InfraError, UsageError, did_you_mean
from fuzzshard.parts.engines import ENGINES, meant_by
from fuzzshard.program.engine_script import engine_script
from fuzzshard.subject.functions import NOT_THE_USERS
from fuzzshard.subject.report import TrainingReport, merged
from fuzzshard.subject.subject import IN_FLOAT64, MeshShape, Subject, Training
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.blame import signal_name
from fuzzshard.world.desync import waits_in
from fuzzshard.world.merge import Outcome, machine_trouble
from fuzzshard.world.messages import Failure, Position

DEFAULT_MESHES = (MeshShape({"dp_shard": 2}),)
DEFAULT_ENGINES = tuple(name for name, spec in reversed(ENGINES.items()) if not spec.choice)
"""Those that wrap a model where nobody says how."""


def trainings(
    subject: Subject,
    meshes: Sequence[MeshShape],
    engines: Sequence[str],
    **options: Any,
) -> tuple[Training, ...]:
    """Return the trainings of a check, with ``options`` of :class:`Training`; raises
    :class:`UsageError` for what makes no sense.
    """
    usual = Training(mesh=DEFAULT_MESHES[0], **options)
    steps, resume, other = usual.steps, usual.resume, usual.resume_mesh
    if steps < 1 or usual.microbatches < 1:
        raise UsageError("a check needs a step and a microbatch", "use 1 or more")
    if resume and not 0 < resume < steps:
        raise UsageError(
            f"a training of {steps} steps cannot be resumed before step {resume}",
            f"use a step from 1 to {steps - 1}" if steps > 1 else "use more --steps",
        )
    if (other or usual.full_state_dicts) and not resume:
        raise UsageError(
            "--resume-mesh and --full-state-dicts say how --resume loads", "add --resume 1"
        )
    if usual.full_state_dicts and subject.save:
        raise UsageError("--save and --full-state-dicts both say what is saved", "use one of them")
    for mesh in meshes:
        if other and max(mesh.size, other.size) % min(mesh.size, other.size):
            raise UsageError(
                f"{mesh.size} ranks cannot be divided into meshes of {other}, or the reverse",
                "use a number of ranks that is a multiple of the other",
            )
    if usual.global_batch and subject.loss_weight:
        raise UsageError(
            "--loss-weight says what batches weigh, which --global-batch takes from the loss of "
            "all of them",
            "use one of them",
        )
    if bool(subject.save) != bool(subject.load) or (subject.save and not resume):
        raise UsageError(
            "--save and --load belong together, and to --resume", "give all of them, or --resume"
        )
    if engines and subject.parallelize:
        raise UsageError(
            "--engine and --parallelize both say how to wrap the model", "use one of them"
        )
    known = [name for name in ENGINES if "model_lines" in vars(type(engine_script(name)))]
    for engine in engines:
        if engine not in known:
            meant = "" if engine in ENGINES else did_you_mean(meant_by(engine))
            told = ", ".join(known)
            raise UsageError(f"{engine} wraps no models of your own{meant}", f"use one of {told}")
    for mesh in (*meshes, *([other] if other else ())) if not subject.parallelize else ():
        mesh.check_axes()
    names = ("",) if subject.parallelize else tuple(engines) or DEFAULT_ENGINES
    return tuple(
        msgspec.structs.replace(usual, mesh=mesh, engine=name) for mesh in meshes for name in names
    )


def import_from_here() -> None:
    """Have ranks find modules in the current folder, which they get the paths of."""
    if "" not in sys.path:  # a console script has no current folder there, python -m has
        sys.path.insert(0, "")


class Checker:
    """Runs trainings of a subject, each in the world of its size.

    ``patience`` is how many seconds one may take. Its report says how many have passed with what
    it takes to start ranks, the first one's since the command ``began``.
    """

    def __init__(
        self,
        subject: Subject,
        config: WorldConfig,
        patience: float,
        began: float | None = None,
    ) -> None:
        self.subject = subject
        self._config = config
        self._patience = patience
        self._began = began
        self._worlds: dict[WorldConfig, World] = {}

    def __enter__(self) -> Checker:
        return self

    def __exit__(self, *_: object) -> None:
        for world in self._worlds.values():
            world.close()

    def run(self, training: Training, *, fresh: bool = False) -> TrainingReport:
        """Return what a training comes to, on ``fresh`` ranks or on those that live.

        Where float64 ends ranks or hangs (a collective of the user's has float32 on one of them),
        it goes without. Raises :class:`UsageError` for a function that cannot be used, and
        :class:`InfraError`.
        """
        began, self._began = self._began or time.monotonic(), None
        config = dataclasses.replace(self._config, size=training.size, subjects=not training.races)
        if config not in self._worlds:
            self._worlds[config] = World(config)
        world = self._worlds[config]
        if fresh:
            world.restart()
        world.start()
        started = time.monotonic()
        outcome = world.check_subject(self.subject, training, patience=self._patience)
        if training.finer and any(IN_FLOAT64 in when for _, _, when in _ranks(outcome)):
            self._began = began
            return self.run(msgspec.structs.replace(training, finer=False))
        ended = time.monotonic()
        report = _report(training, outcome, ended - started)
        return msgspec.structs.replace(report, seconds=ended - began)

    @property
    def torch(self) -> str:
        """The version of torch that ranks have; empty before the first ones started."""
        return next((w.info.get("torch", "") for w in self._worlds.values()), "")


def _report(training: Training, outcome: Outcome, seconds: float) -> TrainingReport:
    failures = [outcome.failures[rank] for rank in sorted(outcome.failures)]
    first = {failure.phase: failure for failure in reversed(failures)}
    if wrong := first.get("subject"):
        raise UsageError(
            wrong.message.partition(": ")[2],
            "fuzzshard check --help says what each function takes and returns",
        )
    if trouble := machine_trouble(outcome):
        raise InfraError(trouble, "this says nothing about the model")
    if ours := first.get("judge"):
        raise InfraError(
            f"an error of fuzzshard's own{f', {ours.engine}' if ours.engine else ''}: "
            f"{ours.message}, {raised_in(ours.traceback)}",
            "this says nothing about the model; please report it with this line",
        )
    if failures or outcome.dead:
        place, message = _trouble(outcome, failures)
        warned = tuple(dict.fromkeys(text for failure in failures for text in failure.warned))
        return TrainingReport(
            training=training, outcome="error", place=place, message=message, warned=warned
        )
    if outcome.waiting():
        ended = f"the training has not ended after {seconds:.0f} s"
        ranks = (line for line, *_ in _ranks(outcome))
        stacks = (f"rank {rank}\n{text}" for rank, text in sorted(outcome.stacks.items()))
        return TrainingReport(
            training=training,
            outcome="hang",
            message="\n".join([ended, *ranks, *_unequal(outcome)]),
            stacks="\n".join(stacks),
        )
    return merged([outcome.checks[rank].checked for rank in sorted(outcome.checks)])


def _trouble(outcome: Outcome, failures: Sequence[Failure]) -> tuple[str, str]:
    """Return what ended ranks before they compared: what they did, and what happened."""
    first = next((failure for failure in failures if not failure.desync), None)
    if len(failures) == outcome.size and len({failure.message for failure in failures}) == 1:
        first = failures[0]  # what all ranks say is no word of a lost one
    if first is not None:
        return first.engine, f"{first.message}, {raised_in(first.traceback)}"
    if failures:
        return "", _collective(outcome)
    rank = min(outcome.dead)
    return f"rank {rank}", f"died of {signal_name(outcome.exits.get(rank, 0))}"


def _collective(outcome: Outcome) -> str:
    """Return what ranks say of a collective that failed, and where each was: gloo ends some."""
    first, ranks = outcome.failures[min(outcome.failures)], [*_ranks(outcome)]
    callers = {where.rpartition("called by ")[2] for _, where, _ in ranks}
    question = (
        "all ranks are in the same one: after as many others, are its tensors of equal sizes, "
        "no uneven shards?"
        if len(callers) == 1 < len(ranks)
        else "do all ranks run the same collectives, on as many microbatches?"
    )
    text = first.message.strip().splitlines()[0]
    return "\n".join([f"a collective failed ({question}): {text}", *(line for line, *_ in ranks)])


def _ranks(outcome: Outcome) -> Iterator[tuple[str, str, str]]:
    """What each rank does, in which line of code, step and module; and that line and that step."""
    for rank in range(outcome.size):
        position = outcome.positions.get(rank, Position(op=-1))
        where, when = stands_in(outcome.stacks.get(rank, "")), position.doing
        does = "is" if waits_in(position) is None else "waits"
        if failure := outcome.failures.get(rank):
            does, where, when = "failed", raised_in(failure.traceback), failure.engine
        elif rank in outcome.dead:
            does = "died"
        elif rank not in outcome.waiting():
            does, where = "has ended", ""
        yield f"rank {rank} {does} {where}".strip() + f", at {when}" * bool(when), where, when


def _unequal(outcome: Outcome) -> Iterator[str]:
    """Say where ranks are in other forwards of the same step: they may run another number."""
    begun = {
        rank: int(number[1])
        for rank in sorted(outcome.positions)
        if (number := _BEGUN.search(outcome.positions[rank].doing))
    }
    if len({*begun.values()}) > 1:
        numbers = ", ".join(f"rank {rank} has {number}" for rank, number in begun.items())
        yield f"unequal numbers of forwards have begun: {numbers}; do ranks run as many of them?"


_BEGUN = re.compile(r"(\d+) forwards? begun")
"""What :attr:`fuzzshard.subject.run.Check.where` says of a step."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+),? in (\S+)')
"""How Python writes a frame in a traceback, and faulthandler in a stack."""


def raised_in(traceback: str) -> str:
    """Say where an exception was raised, and by which line of the user's if that is another."""
    return _described(_FRAME.findall(traceback)[::-1])


def stands_in(stack: str) -> str:
    """Say what the main thread of a rank is doing."""
    main = stack.rpartition("hread 0x")[2]  # the last one, current or not
    return _described(_FRAME.findall(main))


def _described(innermost_first: Sequence[tuple[str, str, str]]) -> str:
    own = [f for f in innermost_first if not any(part in f[0] for part in NOT_THE_USERS)]
    told = dict.fromkeys((*innermost_first[:1], *own[:1]))
    frames = [f"{function} ({Path(file).name}:{line})" for file, line, function in told]
    return f"in {', called by '.join(frames)}" if frames else ""
