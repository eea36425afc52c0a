"""Which differences of a case count: judged by the strictest rung of the ladder that applies.

What that takes beyond the traces is trained here: the reference in the other precision, its noise twins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import dtypes_in_play, finer, has_precision, is_low_precision, swapped_casts
from fuzzshard.engines.base import Engine
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.noise import NoiseTwin
from fuzzshard.engines.reference import Reference
from fuzzshard.oracles.allowed import is_allowed
from fuzzshard.oracles.anchor import PrecisionBound, unrounded
from fuzzshard.oracles.association import narrow_sums
from fuzzshard.oracles.bound import NoiseBound
from fuzzshard.oracles.compare import Difference, differences
from fuzzshard.oracles.judge import is_gray, tensor_findings, vote
from fuzzshard.oracles.overflow import first_overflow, first_partial_overflow
from fuzzshard.oracles.rungs import bitwise_applies, exact_applies, exact_until, loose_rung, split_at_rounding
from fuzzshard.oracles.undetermined import first_undetermined_step
from fuzzshard.training.trace import Trace
from fuzzshard.training.trainer import Trainer
from fuzzshard.verdict import Finding

NOISE_SEEDS = {"bounded": (1, 2), "precision": (1, -1, 2)}
"""The noise twins of a rung: sums that cancel in part are common in half precision."""

MORE_NOISE_SEEDS = (3, 4, 5, 6)
"""Further twins where an error is a little above what those explain, and no higher precision could tell."""


class Ladder:
    """Judges what the engines of a case did on this rank; ``traces`` holds what each one recorded so far.

    All ranks of the mesh ask the same questions in the same order: some of them train again.
    """

    def __init__(self, case: Case, mesh: RankMesh, dtype: torch.dtype, traces: Mapping[str, Trace]) -> None:
        self.case = case
        self.mesh = mesh
        self.dtype = dtype
        self.traces = traces

    def differences(self, engine: str) -> list[Difference]:
        """What differs from the reference, of all that the case wants to be compared."""
        found = differences(self.traces[Reference.name], self.traces[engine])
        if self.case.observe == "losses":
            found = [d for d in found if d.key.oracle == "loss"]
        return [d for d in found if not is_allowed(engine, self.case, d)]

    def judge(self, differing: dict[str, list[Difference]]) -> tuple[list[Finding], str]:
        """Bitwise comparison came first; only a difference makes it worth finding out what is due."""
        if not self._anywhere(any(differing.values())):
            return [], "bitwise"
        differing = self._before_overflow(differing)
        device = self.mesh.device.type
        rungs = {name: "bitwise" for name in differing if bitwise_applies(self.case, name, device)}
        rest = [name for name in differing if name not in rungs]
        exact = self._exact_until() if rest and self.case.values == "dyadic" else 0
        ends = {name: exact if exact_applies(self.case, name) else 0 for name in rest}
        for name, end in ends.items():
            rungs[name] = "exact" if end >= len(self.case.schedule) else loose_rung(self.case)
        loose: dict[str, list[Difference]] = {}
        strict = dict(differing)
        for name in (name for name in differing if rungs[name] == loose_rung(self.case)):
            found = differing[name]
            strict[name], loose[name] = split_at_rounding(self.case, name, found, device, ends[name])
        loose = self._before_rounding_decides(loose)
        bound = self._noise_bound(loose) if loose else None
        findings: list[Finding] = []
        for name, found in strict.items():
            culprit = vote(self.case, name, self.traces, differing)
            rung = "bitwise" if name in loose else rungs[name]
            findings += tensor_findings(name, found, rung, None, culprit, self.mesh.rank)
            if bound is not None and name in loose:
                limit = bound.of(name)
                findings += tensor_findings(name, loose[name], rungs[name], limit, culprit, self.mesh.rank)
        return findings, min(rungs.values(), key=("exact", "bitwise", "bounded", "precision").index)

    def _before_overflow(self, differing: dict[str, list[Difference]]) -> dict[str, list[Difference]]:
        """What differs before a sum overflows."""
        size, end = self.mesh.size, len(self.case.schedule)
        ends = {
            name: first_overflow(found, size, narrow_sums(self.case, name), end)
            for name, found in differing.items()
        }
        return self._before(ends, differing)

    def _before_rounding_decides(self, loose: dict[str, list[Difference]]) -> dict[str, list[Difference]]:
        """What differs before the order of a sum decides the size of a step, or how the sum overflows."""
        ends = {
            name: min(
                first_undetermined_step(self.case, name, found),
                first_partial_overflow(found, len(self.case.schedule)),
            )
            for name, found in loose.items()
        }
        return self._before(ends, loose) if loose else {}

    def _before(
        self, ends: Mapping[str, int], found: Mapping[str, list[Difference]]
    ) -> dict[str, list[Difference]]:
        """What differs before the op at which comparing ends, by engine, on the first rank to see that."""
        first = torch.tensor([ends[name] for name in found], device=self.mesh.device)
        dist.all_reduce(first, op=dist.ReduceOp.MIN, group=self.mesh.everyone)
        before = dict(zip(found, first.tolist(), strict=True))
        return {name: [d for d in some if d.key.op < before[name]] for name, some in found.items()}

    def _noise_bound(self, differing: dict[str, list[Difference]]) -> NoiseBound:
        """Twins run one by one, and only while some difference is not explained without another."""
        rung = loose_rung(self.case)
        bound = self._bound_without_twins()
        more = MORE_NOISE_SEEDS if finer(self.case) == self.case else ()
        for seed in NOISE_SEEDS[rung] + more:
            if not self._anywhere(any(_unexplained(differing, bound))):
                break
            if seed in more and self._anywhere(_some_clearly(differing, bound, rung)):
                break
            bound = bound.with_twin(self._trace(NoiseTwin(self.case, self.mesh, self.dtype, seed)))
        return bound

    def _bound_without_twins(self) -> NoiseBound:
        reference = self.traces["reference"]
        if is_low_precision(self.case):
            return PrecisionBound(self.case, reference, [], truth=self._truth())
        return NoiseBound(self.case, reference, [])

    def _exact_until(self) -> int:
        """The first op that rounds something on some rank: in either precision, or in those of a policy."""
        first = torch.tensor([self._exact_here_until()], device=self.mesh.device)
        dist.all_reduce(first, op=dist.ReduceOp.MIN, group=self.mesh.everyone)
        return int(first.item())

    def _exact_here_until(self) -> int:
        """The same on this rank; all of them train the same runs."""
        end, in_parts = len(self.case.schedule), bool(self.case.tensor_parallel)
        reference = self.traces["reference"]
        if not has_precision(self.case) and not self.case.dtypes:
            other = torch.float64 if self.dtype == torch.float32 else torch.float32
            rerun = self._trace(Reference(swapped_casts(self.case), self.mesh, other))
            return exact_until(reference, rerun, end, in_parts=in_parts)
        truth = self._truth()
        first = exact_until(reference, truth, end, in_parts=in_parts)
        doubles = "float64" in dtypes_in_play(self.case)
        if not doubles and not any(op.casts_to for op in self.case.schedule):
            return first
        plain = self._trace(Reference(swapped_casts(unrounded(self.case)), self.mesh, torch.float32))
        return min(first, exact_until(truth, plain, end, in_parts=in_parts))

    def _truth(self) -> Trace:
        """What the case computes without mixed precision, in float64."""
        return self._trace(Reference(unrounded(self.case), self.mesh, torch.float64))

    def _anywhere(self, here: bool) -> bool:
        """Whether ``here`` holds on any rank of the mesh; every rank asks the same questions in order."""
        flag = torch.tensor([here], dtype=torch.int32, device=self.mesh.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.mesh.everyone)
        return bool(flag.item())

    def _trace(self, engine: Engine) -> Trace:
        trace = Trace()
        Trainer(engine.case, engine, trace).run()
        return trace


def _unexplained(
    differing: Mapping[str, list[Difference]], bound: NoiseBound
) -> Iterator[tuple[NoiseBound, Difference, float, float]]:
    """What noise does not explain, with the bound of its engine, the error and the limit."""
    for name, found in differing.items():
        of_engine = bound.of(name)
        for difference in found:
            explained, error, limit = of_engine.excess(difference)
            if not explained:
                yield of_engine, difference, error, limit


def _some_clearly(differing: Mapping[str, list[Difference]], bound: NoiseBound, rung: str) -> bool:
    """Whether some of it is no rounding at all, however many twins there are."""
    left = _unexplained(differing, bound)
    return any(not is_gray(d, error, limit, rung, of_engine) for of_engine, d, error, limit in left)
