"""One case on one rank: train the reference, train the engines, compare, and judge what
differs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from msgspec.structs import replace
from torch.distributed.tensor import DTensor

from fuzzshard import oracles
from fuzzshard.analysis.schedule_state import ranks_differ
from fuzzshard.analysis.validate import is_valid
from fuzzshard.case.case import Case
from fuzzshard.engines.base import DTYPES, Engine
from fuzzshard.engines.mesh import RankMesh, rank_mesh
from fuzzshard.engines.registry import engine_of, not_applicable
from fuzzshard.instruments import COLLECTIVES, STREAMS, InstrumentError, believed, works
from fuzzshard.instruments.streams.watching import Watched, watching
from fuzzshard.oracles.after_run import growth_findings, memory_findings
from fuzzshard.oracles.allowed import may_be_allowed
from fuzzshard.oracles.alone import findings_alone
from fuzzshard.oracles.judge import Run
from fuzzshard.oracles.resume import uncorrupted
from fuzzshard.parts.engines import REFERENCE, spec_of
from fuzzshard.parts.exclusion import Exclusion
from fuzzshard.training import hooks
from fuzzshard.training.collectives import Recorder, record_into
from fuzzshard.training.delays import Delays
from fuzzshard.training.expectations import ErrorMissing, Watch, describe
from fuzzshard.training.leaked import LeakWatch, collect_garbage, wait_until_freed
from fuzzshard.training.memory import REPEATS, bytes_after_runs, counting, growth
from fuzzshard.training.trace import Trace
from fuzzshard.training.trainer import Trainer
from fuzzshard.verdict import Finding, Note
from fuzzshard.world.blame import device_error, error_text
from fuzzshard.world.comparison import ReferenceComparison, anywhere
from fuzzshard.world.messages import RankReport

_MODULES = (
    importlib.import_module(file.name)
    for file in pkgutil.iter_modules(oracles.__path__, f"{oracles.__name__}.")
)
_JUDGES = [module.judge for module in _MODULES if hasattr(module, "judge")]
"""What is judged beside tensors: by every module of the oracles that has a function ``judge``."""


class EngineFailure(Exception):
    """An engine raised; the cause is chained. ``op`` is the op that ran, -1 during construction.

    ``expected`` describes the error that the case expects in place of this one; it is empty if
    there is none. ``findings`` are what this rank saw before.
    """

    def __init__(self, engine: str, op: int, expected: str = "") -> None:
        super().__init__(engine, op, expected)
        self.engine = engine
        self.op = op
        self.expected = expected
        self.findings: tuple[Finding, ...] = ()


class Experiment:
    """Runs one case on one rank of its mesh. ``on_engine`` is told which engine runs."""

    def __init__(self, case: Case, mesh: RankMesh, on_engine: Callable[[str], None]) -> None:
        self.compares = not ranks_differ(case)
        self.case = case
        self.mesh = mesh
        self.on_engine = on_engine
        self.dtype = DTYPES[case.dtype]
        self.traces: dict[str, Trace] = {}
        self.notes: dict[str, str] = {}
        self.refused: list[str] = []
        self.unexpected: list[Finding] = []
        self.watched: dict[str, LeakWatch] = {}
        self.comparison = ReferenceComparison(case, mesh, self.traces, self._train_again)

    def run_bare(self) -> None:
        """Trains the reference and every engine, and looks at nothing."""
        for name in (REFERENCE.name, *self.case.engines):
            if not_applicable(self.case, name) is None:
                self._train(name, lambda: self._build(name), None)  # noqa: B023

    def run(self) -> RankReport:
        """Trains, compares and judges. Raises :class:`EngineFailure` where an engine raises."""
        for name in self._names():
            if (
                excluded := not_applicable(self.case, name) or self._not_comparable(name)
            ) is not None:
                self.notes[name] = str(Note("not applicable", excluded.reason))
                continue
            trace = Trace(engine=name, has_tensors=self.compares)
            try:
                if self._train(name, lambda: self._build(name), trace):  # noqa: B023
                    self.traces[name] = trace
            except EngineFailure as failure:
                failure.findings = self._findings_before(name, trace)
                raise
        if self.watched:
            wait_until_freed(self.watched.values())
        for name, watch in self.watched.items():
            self.traces[name].leaked = watch.names()
        if not self.compares:
            unexpected = tuple(filter(believed, self.unexpected))
            refused = tuple(self.refused)
            return RankReport(findings=unexpected, notes=self.notes, refused=refused)
        engines = [name for name in self.traces if name != REFERENCE.name]
        reference = self.traces[REFERENCE.name]
        differing = {name: self.comparison.differences(name) for name in engines}
        judged = self.comparison.judge(differing)
        findings = judged.findings + self.unexpected
        findings += uncorrupted(self.case, reference, self.mesh.rank)
        if self.case.observe != "losses":
            findings += self._findings_beside_tensors(engines, reference)
        findings += self._memory_findings(engines)
        return RankReport(
            findings=tuple(filter(believed, findings)),
            notes=self.notes,
            refused=tuple(self.refused),
            comparison=judged.comparison,
            compared=judged.compared,
            collectives={
                n: ", ".join(map(str, t.collectives))
                for n, t in self.traces.items()
                if works(COLLECTIVES)
            },
            replicas={n: _digest(t) for n, t in self.traces.items()},
        )

    def _findings_beside_tensors(self, engines: Sequence[str], reference: Trace) -> list[Finding]:
        runs = [Run(self.case, n, self.traces[n], reference, self.mesh) for n in engines]
        return [finding for run in runs for judge in _JUDGES for finding in judge(run)]

    def _names(self) -> tuple[str, ...]:
        """What is trained; where ranks differ, the reference's gradients have no common mean."""
        return (REFERENCE.name, *self.case.engines) if self.compares else self.case.engines

    def _not_comparable(self, engine: str) -> Exclusion | None:
        """Why an engine cannot be compared with what the reference did, if that was trained."""
        if engine == REFERENCE.name or not self.compares:
            return None
        return engine_of(engine).not_comparable(self.case, self.traces[REFERENCE.name])

    def _findings_before(self, engine: str, trace: Trace) -> tuple[Finding, ...]:
        """What this rank saw of all engines until ``engine`` raised, whose trace ends there."""
        if REFERENCE.name not in self.traces:
            return tuple(self.unexpected)
        self.traces[engine] = trace
        differing = {
            n: [d for d in self.comparison.differences(n) if not may_be_allowed(self.case, n, d)]
            for n in self.traces
            if n != REFERENCE.name
        }
        alone = findings_alone(self.case, self.traces, differing, self.mesh.rank)
        return (*filter(believed, alone), *self.unexpected)

    def _train_again(self, case: Case, name: str) -> Trace | None:
        """Trains the engine of that name on another case; None where that is refused, or does not
        apply.
        """
        if not_applicable(case, name) is not None:
            return None
        again = Experiment(case, rank_mesh(case, self.mesh.device), self.on_engine)
        trace = Trace(engine=name)
        build = functools.partial(again._build, name)
        return trace if again._train(name, build, trace) else None

    def _memory_findings(self, engines: Sequence[str]) -> list[Finding]:
        """Trains the reference and the engines again, if the case asks for it; what keeps itself
        is known.
        """
        if self.case.observe != "memory" or self.case.compile is not None or self.case.expect:
            return []
        findings: list[Finding] = []
        for name in (REFERENCE.name, *(e for e in engines if not engine_of(e).outlives_run)):
            again = Experiment(self.case, self.mesh, self.on_engine)
            run = functools.partial(
                again._train, name, functools.partial(again._build, name), None
            )
            after = bytes_after_runs(run, self.mesh.device, self.mesh.everyone)
            findings += memory_findings(self.case, name, after, self.mesh.global_rank)
        return findings + self._growth_findings(engines)

    def _growth_findings(self, engines: Sequence[str]) -> list[Finding]:
        """Train with the whole schedule several times over, where that is a schedule of one
        model, and return what grows every time and does not in the reference.
        """
        case = replace(self.case, schedule=self.case.schedule * REPEATS, observe="losses")
        if any(op.rebuilds is not None for op in case.schedule) or not is_valid(case):
            return []
        again = Experiment(case, self.mesh, self.on_engine)
        expected = again._growth(REFERENCE.name)
        findings: list[Finding] = []
        for name in engines:
            grown = again._growth(name) - expected
            if anywhere(self.mesh, bool(grown)):  # the first time, what is kept of statements, too
                grown &= again._growth(name)
            findings += growth_findings(self.case, name, grown, self.mesh.global_rank)
        return findings

    def _growth(self, name: str) -> Counter[str]:
        """Return what grows from one time to the next; where the engine refuses, nothing."""
        counts: list[Counter[str]] = []
        once = len(self.case.schedule) // REPEATS
        with counting() as count:

            def build() -> Engine:
                engine = self._build(name)
                before = engine.before_op

                def counted(index: int, optimizers: Sequence[torch.optim.Optimizer]) -> None:
                    if index % once == 0:
                        counts.append(count())
                    before(index, optimizers)

                engine.before_op = counted  # type: ignore[method-assign]
                return engine

            trains = not_applicable(self.case, name) is None
            trained = trains and self._train(name, build, None)
        return growth(counts[2:]) if trained else Counter()

    def _build(self, name: str) -> Engine:
        return engine_of(name)(self.case, self.mesh, self.dtype)

    def _train(self, name: str, build: Callable[[], Engine], trace: Trace | None) -> bool:
        """Runs one engine; False where it refused with a documented error, or ought to have."""
        self.on_engine(name)
        if self.case.compile is not None:
            # Dynamo walks torch's table of all wrapped modules, and fails where one goes meanwhile
            # (pytorch PR 191281): which of an earlier engine's are garbage, and when they go, is
            # no part of the case.
            collect_garbage()
        watch = Watch(self.case, name, self.mesh.global_rank)
        recorder = Recorder()
        if trace is not None:
            recorder.log = trace.collectives
        if name != REFERENCE.name:
            recorder.delays = Delays(self.case, self.mesh.device, self.mesh.global_rank)
        record_into(recorder)
        hooks.record_into(recorder, [] if trace is None else trace.hooks)
        try:
            with (
                watch.listening(),
                engine_of(name).surroundings(self.case),
                self._watching(name, trace) as watched,
            ):
                if watched is not None:
                    recorder.streams = watched.recorder
                trainer = Trainer(self.case, build(), trace, recorder)
                trainer.run(watch.enter)
                self._wait_for_kernels()
                if watched is not None:
                    watched.named = functools.partial(_storage_names, trainer.engine)
                leaks = LeakWatch(trainer.engine)
                del trainer
            if watched is not None and trace is not None:
                trace.races = watched.races
        except ErrorMissing:
            pass
        except InstrumentError:
            raise
        except Exception as error:
            if device_error(
                error_text(error)
            ):  # whatever was expected, this process is of no more use
                raise EngineFailure(name, watch.op) from error
            if watch.expects(error):
                self.notes[name] = str(Note("raised as expected", _first_line(error)))
            elif watch.error is not None:
                raise EngineFailure(name, watch.op, describe(watch.error)) from error
            elif watch.refuses(error):
                self.refused.append(name)
                self.notes[name] = str(Note("refused", _first_line(error)))
                return False
            else:
                raise EngineFailure(name, watch.op) from error
        finally:
            record_into(None)
            hooks.record_into(None, [])
        if (missing := watch.not_refused()) is not None:
            self.unexpected.append(missing)
            return False
        self.unexpected += watch.findings(trace.skipped if trace is not None else ())
        # on CUDA small models under fully_shard have outlived it: why is unknown
        may_leak = self.case.compile is None and self.mesh.device.type == "cpu"
        if trace is not None and trace.leftovers is not None and may_leak:
            self.watched[name] = leaks
        return True

    def _watching(
        self, name: str, trace: Trace | None
    ) -> contextlib.AbstractContextManager[Watched | None]:
        """Watches the streams of an engine, where the case asks for it and there are some."""
        wanted = trace is not None and self.case.observe == "races" and self.case.compile is None
        spec = spec_of(name)
        if not wanted or spec is REFERENCE or not works(STREAMS):
            return contextlib.nullcontext()
        if self.mesh.device.type != "cuda" and not spec.applies_groups:
            return contextlib.nullcontext()
        return watching(self.mesh.device)

    def _wait_for_kernels(self) -> None:
        """What fails in one of them is raised here, in the engine that launched it, and not in the
        next.
        """
        if self.mesh.device.type == "cuda":
            torch.cuda.synchronize(self.mesh.device)


def _storage_names(engine: Engine) -> dict[int, str]:
    """Return what the memory of an engine is called, by the address of its storage in C++."""
    held = ((name, t.to_local() if isinstance(t, DTensor) else t) for name, t in engine.held())
    return {tensor.untyped_storage()._cdata: name for name, tensor in held}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _digest(trace: Trace) -> str:
    """Return a checksum of the last parameters and the piece of the whole that this rank holds."""
    last: dict[str, torch.Tensor] = {}
    pieces: dict[str, str] = {}
    for key, observation in trace.tensors.items():
        if key.rule.is_weight and (tensor := observation.tensor) is not None:
            last[key.name] = tensor
            pieces[key.name] = repr(observation.pieces)
    where = zlib.crc32(repr(sorted(pieces.items())).encode())
    what = zlib.crc32(repr(sorted((n, t.dtype, t.shape) for n, t in last.items())).encode())
    if last:  # together: each copy would wait for the GPU
        device = next(iter(last.values())).device
        flat = [last[name].to(device).reshape(-1).view(torch.uint8) for name in sorted(last)]
        what = zlib.crc32(torch.cat(flat).cpu().numpy().tobytes(), what)
    return f"{where}:{what}"


_PLUMBING = (
    *("/torch/nn/modules/", "/torch/nn/functional.py", "/torch/autograd/"),
    *("/torch/_tensor.py", "/torch/_ops.py"),
)
"""Files that only pass calls on: they say nothing about where an exception comes from."""


_INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>")
"""What has a frame of its own in Python 3.11 and none since (PEP 709)."""


def innermost_torch_frame(error: BaseException) -> str:
    """Return the function in torch's own code that raised, for a signature; the raising function
    if none did.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.name not in _INLINED]
    in_torch = [
        f.name
        for f in frames
        if "/torch/" in f.filename and not any(p in f.filename for p in _PLUMBING)
    ]
    return (in_torch or [f.name for f in frames] or ["?"])[-1]
