"""One case on one rank: train the reference, train the engines, compare, and judge what differs."""

from __future__ import annotations

import traceback
import zlib
from collections.abc import Callable

import torch
import torch.distributed as dist

from fuzzshard.case.case import Case
from fuzzshard.engines.base import DTYPES, Engine
from fuzzshard.engines.fully_shard import FullyShard
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.reference import NoiseTwin, Reference
from fuzzshard.engines.refusals import refusal
from fuzzshard.engines.registry import ENGINES, not_applicable
from fuzzshard.oracles.allowed import is_allowed
from fuzzshard.oracles.bound import NoiseBound
from fuzzshard.oracles.compare import Difference, differences
from fuzzshard.oracles.judge import bitwise_applies, exact_applies, is_exact, tensor_findings, vote
from fuzzshard.oracles.registration import registration_findings
from fuzzshard.training.collectives import Recorder, record_into
from fuzzshard.training.delays import Delays
from fuzzshard.training.trace import Trace
from fuzzshard.training.trainer import Trainer
from fuzzshard.verdict import Finding
from fuzzshard.world.messages import RankReport

NOISE_SEEDS = (1, 2)


class EngineFailure(Exception):
    """An engine raised; the cause is chained. ``op`` is the op that ran, -1 during construction."""

    def __init__(self, engine: str, op: int) -> None:
        super().__init__(engine, op)
        self.engine = engine
        self.op = op


class Experiment:
    """Runs one case on one rank of its mesh. ``on_engine`` is told which engine runs."""

    def __init__(self, case: Case, mesh: RankMesh, on_engine: Callable[[str], None]) -> None:
        self.case = case
        self.mesh = mesh
        self.on_engine = on_engine
        self.dtype = DTYPES[case.dtype]
        self.traces: dict[str, Trace] = {}
        self.notes: dict[str, str] = {}

    def run_bare(self) -> None:
        """Trains the reference and every engine, and looks at nothing."""
        for name in ("reference", *self.case.engines):
            if not_applicable(self.case, name) is None:
                self._train(name, lambda: self._build(name), None)  # noqa: B023

    def run(self) -> RankReport:
        """Trains, compares and judges. Raises :class:`EngineFailure` where an engine raises."""
        for name in ("reference", *self.case.engines):
            if (reason := not_applicable(self.case, name)) is not None:
                self.notes[name] = f"not applicable: {reason}"
                continue
            trace = Trace()
            if self._train(name, lambda: self._build(name), trace):  # noqa: B023
                self.traces[name] = trace
        engines = [name for name in self.traces if name != "reference"]
        reference = self.traces["reference"]
        differing = {
            name: [d for d in differences(reference, self.traces[name]) if not is_allowed(name, self.case, d)]
            for name in engines
        }
        findings, rung = self._judge(differing)
        if FullyShard.name in engines:
            findings += registration_findings(self.case, self.traces[FullyShard.name], self.mesh.rank)
        return RankReport(
            findings=tuple(findings),
            notes=self.notes,
            rung=rung,
            collectives={n: ", ".join(map(str, t.collectives)) for n, t in self.traces.items()},
            replicas={n: _digest(t) for n, t in self.traces.items()},
        )

    def _build(self, name: str) -> Engine:
        return (Reference if name == Reference.name else ENGINES[name])(self.case, self.mesh, self.dtype)

    def _train(self, name: str, build: Callable[[], Engine], trace: Trace | None) -> bool:
        """Runs one engine; False where it refused with a documented error."""
        self.on_engine(name)
        op = -1

        def on_op(index: int) -> None:
            nonlocal op
            op = index

        recorder = Recorder()
        if trace is not None:
            recorder.log = trace.collectives
        if name != Reference.name:
            recorder.delays = Delays(self.case, self.mesh.device, self.mesh.global_rank)
        record_into(recorder)
        try:
            Trainer(self.case, build(), trace, recorder).run(on_op)
        except Exception as error:
            known = refusal(name, error)
            if known is None:
                raise EngineFailure(name, op) from error
            self.notes[name] = f"refused: {_first_line(error)}"
            return False
        finally:
            record_into(None)
        return True

    def _anywhere(self, here: bool) -> bool:
        """Whether ``here`` holds on any rank of the mesh; every rank asks the same questions in order."""
        flag = torch.tensor([here], dtype=torch.int32, device=self.mesh.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.mesh.everyone)
        return bool(flag.item())

    def _judge(self, differing: dict[str, list[Difference]]) -> tuple[list[Finding], str]:
        """Bitwise comparison came first; only a difference makes it worth finding out what is due."""
        if not self._anywhere(any(differing.values())):
            return [], "bitwise"
        if bitwise_applies(self.case):
            rungs = dict.fromkeys(differing, "bitwise")
        elif self.case.values == "dyadic" and not self._anywhere(not self._runs_exactly()):
            rungs = {n: "exact" if exact_applies(self.case, n) else "bounded" for n in differing}
        else:
            rungs = dict.fromkeys(differing, "bounded")
        loose = {name: found for name, found in differing.items() if rungs[name] == "bounded"}
        bound = self._noise_bound(loose) if loose else None
        findings: list[Finding] = []
        for name, found in differing.items():
            culprit = vote(name, self.traces, differing)
            limit = bound if rungs[name] == "bounded" else None
            findings += tensor_findings(name, found, rungs[name], limit, culprit, self.mesh.rank)
        return findings, min(rungs.values(), key=("exact", "bitwise", "bounded").index)

    def _noise_bound(self, differing: dict[str, list[Difference]]) -> NoiseBound:
        """Twins run one by one, and only while some difference is not explained without another."""
        bound = NoiseBound(self.case, self.traces["reference"], [])
        found = [d for differences_of in differing.values() for d in differences_of]
        for seed in NOISE_SEEDS:
            if not self._anywhere(not all(bound.excess(d)[0] for d in found)):
                break
            bound = bound.with_twin(self._rerun(self.dtype, seed))
        return bound

    def _runs_exactly(self) -> bool:
        other = torch.float64 if self.dtype == torch.float32 else torch.float32
        return is_exact(self.traces["reference"], self._rerun(other, None))

    def _rerun(self, dtype: torch.dtype, noise_seed: int | None) -> Trace:
        trace = Trace()
        engine = (
            Reference(self.case, self.mesh, dtype)
            if noise_seed is None
            else NoiseTwin(self.case, self.mesh, dtype, noise_seed)
        )
        Trainer(self.case, engine, trace).run()
        return trace


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _digest(trace: Trace) -> str:
    """A checksum of the last parameters and the piece of the whole that this rank holds."""
    last: dict[str, bytes] = {}
    pieces: dict[str, str] = {}
    for key, observation in trace.tensors.items():
        if key.oracle == "parameter" and observation.tensor is not None:
            last[key.name] = observation.tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()
            pieces[key.name] = repr(observation.pieces)
    where, what = (zlib.crc32(repr(sorted(d.items())).encode()) for d in (pieces, last))
    return f"{where}:{what}"


_PLUMBING = ("/torch/nn/modules/", "/torch/_ops.py", "/torch/autograd/", "/torch/nn/functional.py")
"""Files that only pass calls on: they say nothing about where an exception comes from."""


def innermost_torch_frame(error: BaseException) -> str:
    """The function in torch's own code that raised, for a signature; the raising function if none did."""
    frames = traceback.extract_tb(error.__traceback__)
    in_torch = [
        f.name for f in frames if "/torch/" in f.filename and not any(p in f.filename for p in _PLUMBING)
    ]
    return (in_torch or [f.name for f in frames] or ["?"])[-1]
