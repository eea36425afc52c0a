"""Which differences of a case count: judged by the strictest rung of the ladder that applies.

What that takes beyond the traces is trained here: the same runs in higher precision.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import finer, uniform
from fuzzshard.case.validate import is_valid
from fuzzshard.engines.base import DTYPES
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.reference.engine import Reference
from fuzzshard.engines.reference.manner import PLAIN, Manner
from fuzzshard.oracles.allowed import is_beyond_rounding, manner_of
from fuzzshard.oracles.bound import (
    OF_COARSER,
    Bound,
    largest_distance,
    last_bit,
    margin_of_last_bits,
)
from fuzzshard.oracles.compare import Difference, differences
from fuzzshard.oracles.judge import agreement, tensor_findings
from fuzzshard.oracles.overflow import first_overflow
from fuzzshard.oracles.rungs import before_rounding_feeds_back, exact_until, first_step, loose_rung
from fuzzshard.parts.engines import spec_of
from fuzzshard.training.trace import Key, Trace
from fuzzshard.training.trainer import Trainer
from fuzzshard.verdict import STRICTNESS, Compared, Finding

Again = Callable[[Case, str, float], Trace | None]
"""Trains an engine, by its name, on another case, from parameters that differ by so much of
themselves; None where it refuses that.
"""

Differing = dict[str, list[Difference]]
"""What differs from the reference, by engine."""


def runs_finer(case: Case) -> Case:
    """The case in the next higher precision, or without mixed precision where that is no case.

    Norms take half precision with parameters of float32, and nothing of float32 with those of
    float64.
    """
    precise = finer(case)
    return precise if is_valid(precise) else uniform(case, "float64")


def train_reference(case: Case, mesh: RankMesh, manner: Manner, shake: float = 0.0) -> Trace:
    """Return what the reference computes, from parameters that differ by ``shake`` of
    themselves.
    """
    trace, engine = Trace(), Reference(case, mesh, DTYPES[case.dtype], manner)
    if shake:
        engine.shake(shake)
    Trainer(case, engine, trace).run()
    return trace


class Judgement(NamedTuple):
    """What the ladder says of all engines on this rank: findings, the rung of the case, and how
    each engine was compared.
    """

    findings: list[Finding]
    rung: str
    compared: dict[str, Compared]


class Ladder:
    """Judges what the engines of a case did on this rank; ``traces`` holds what each one recorded
    so far.

    All ranks of the mesh ask the same questions in the same order: some of them train again. The
    reference trains in the ``manner`` that is documented for the engines.
    """

    def __init__(
        self,
        case: Case,
        mesh: RankMesh,
        traces: Mapping[str, Trace],
        again: Again,
        manner: Manner = PLAIN,
    ) -> None:
        self.case = case
        self.mesh = mesh
        self.traces = traces
        self.again = again
        self.manner = manner
        self.skipped: defaultdict[str, set[Key]] = defaultdict(set)
        """By engine the tensors that differ and may have any value: no digits are left, or only a
        finer run could judge them and the engine has none.
        """
        self.witnesses: Differing = {}
        """What of all engines differs from the reference that each is held to."""
        self._trained: dict[Case, Trace] = {}

    def differences(self, engine: str) -> list[Difference]:
        """What differs from the reference, of all that the case wants to be compared."""
        return self._differences(engine, self.traces)

    def judge(self, differing: Differing) -> Judgement:
        """Bitwise comparison came first; only a difference makes it worth finding out what is
        due.

        An engine that differs by more than rounding is held to what is documented for it.
        """
        if not self.anywhere(any(differing.values())):
            return self._judge(differing)
        ladders = {name: self._documented(name) or self for name in differing}
        others = {name: ladder for name, ladder in ladders.items() if ladder is not self}
        found = {name: ladders[name].differences(name) for name in others}
        for ladder in (self, *others.values()):
            ladder.witnesses = differing | found
        plain = {name: here for name, here in differing.items() if name not in others}
        judged = [ladder._judge({name: found[name]}) for name, ladder in others.items()]
        judged += [self._judge(plain)] if plain or not judged else []
        return Judgement(
            [finding for each in judged for finding in each.findings],
            min((each.rung for each in judged), key=STRICTNESS.__getitem__),
            {name: how for each in judged for name, how in each.compared.items()},
        )

    def _documented(self, engine: str) -> Ladder | None:
        """The ladder with the reference in the manner that is documented for an engine; None where
        the engine differs by rounding only, or nothing is documented.
        """
        plain, trace = self.traces[Reference.name], self.traces[engine]
        if not self.anywhere(any(map(is_beyond_rounding, differences(plain, trace)))):
            return None
        manner = manner_of(self.case, engine, trace, self.mesh)
        if not self.anywhere(manner != PLAIN):
            return None
        reference = train_reference(self.case, self.mesh, manner)
        traces = {**self.traces, Reference.name: reference}
        return Ladder(self.case, self.mesh, traces, self.again, manner)

    def _judge(self, differing: Differing) -> Judgement:
        """What the reference of this ladder says of some engines."""
        if not self.anywhere(any(differing.values())):
            rungs = dict.fromkeys(differing, "bitwise")
            return Judgement([], "bitwise", self._compared(rungs))
        overflow = self._first_overflows(differing)
        exact = self._exact_until() if self.case.values == "dyadic" else 0
        strict: Differing = {name: [] for name in differing}
        loose: Differing = {name: [] for name in differing}
        for name, found in differing.items():
            for difference in found:
                is_exact = difference.key.op < min(exact, overflow[name])
                is_exact = is_exact and not spec_of(name).rounds_otherwise
                (strict if is_exact else loose)[name].append(difference)
        findings = self._findings(strict, "exact", None, self.traces)
        if self.anywhere(any(loose.values())):
            findings += self._loose_findings(loose, overflow)
        rung = "exact" if exact >= len(self.case.schedule) else loose_rung(self.case)
        rungs = {
            name: loose_rung(self.case) if loose[name] else "exact" if strict[name] else "bitwise"
            for name in differing
        }
        return Judgement(findings, rung, self._compared(rungs))

    def _compared(self, rungs: Mapping[str, str]) -> dict[str, Compared]:
        """How each engine was compared, by the rung that its differences took."""
        reference = self.traces[Reference.name].tensors
        compared = {}
        for name, rung in rungs.items():
            recorded = sum(
                key in reference and self._wants(key) for key in self.traces[name].tensors
            )
            skipped = len(self.skipped[name])
            compared[name] = Compared(rung=rung, tensors=recorded - skipped, skipped=skipped)
        return compared

    def _loose_findings(self, differing: Differing, overflow: Mapping[str, int]) -> list[Finding]:
        """What rounding does not explain: in the precision of the case, then in a finer one.

        The precision of the case up to the first step and the first ``overflow`` only: Adam makes
        a whole step of a gradient that is nothing but rounding. Both are needed: ``fully_shard``
        divides gradients in float64 as it does in float16 (``_get_gradient_divide_factors``), and
        otherwise in float32. An engine that rounds otherwise is judged in the finer one. Whether
        something is there, and its shape and dtype, no rounding explains, but an overflow does: a
        ``GradScaler`` leaves out that step, and the optimizer has no state of it.
        """
        reference = self.traces[Reference.name]
        before = _before(differing, overflow)
        if self.case == uniform(self.case, "float64"):
            coarser = Bound(self.case, reference, self._single, OF_COARSER)
            return self._findings_with_digits(self.case, before, coarser, self.traces)
        step = first_step(self.case)
        early = {
            name: [
                d
                for d in before_rounding_feeds_back(found, step)
                if not (d.comparable and spec_of(name).rounds_otherwise)
            ]
            for name, found in before.items()
        }
        bound = Bound(self.case, reference, self._truth)
        ends = {name: min(step, end) for name, end in overflow.items()}
        precise = self._finer_findings(differing, ends)
        seen = {(f.engine, f.op, f.oracle, f.name) for f in precise}
        found = self._findings_with_digits(self.case, early, bound, self.traces)
        return [*precise, *(f for f in found if (f.engine, f.op, f.oracle, f.name) not in seen)]

    def _finer_findings(self, differing: Differing, ends: Mapping[str, int]) -> list[Finding]:
        """What the engines that differ do otherwise than the reference in the next higher
        precision, too.

        It has to be there in both: torch may take another path in the finer one, with a mistake of
        its own. So the engines do not run again where what differs in the case is too small to
        count in the finer one.
        """
        case = runs_finer(self.case)
        reference = self._trace(case)
        bound = Bound(case, reference, self._truth)
        if reference is self._truth:
            bound = Bound(case, reference, self._single, OF_COARSER)
        if not self.anywhere(_may_be_wrong(differing, bound)):
            return []
        traces = {Reference.name: reference}
        for name, found in differing.items():
            if self.anywhere(any(d.comparable for d in found)):
                trace = self.again(case, name, 0.0)
                if trace is not None:
                    traces[name] = trace
                else:
                    late = [d for d in found if d.comparable and d.key.op >= ends[name]]
                    self.skipped[name] |= _keys(late)
        still = {
            name: _no_less_wrong(self._differences(name, traces), differing[name])
            for name in traces
            if name != Reference.name
        }
        before = _before(still, self._first_overflows(still, finer=True))
        return self._findings_with_digits(case, before, bound, traces)

    def _findings_with_digits(
        self, case: Case, differing: Differing, bound: Bound, traces: Mapping[str, Trace]
    ) -> list[Finding]:
        """What the bound does not explain, where the reference has digits.

        A model that amplifies by more than a billion leaves none, not even in float64, and a sum
        that cancels before a ``relu`` has none either: then values that differ in their last bits
        take the reference as far (note 0026), or an engine that rounds otherwise.
        """
        found = self._findings(differing, loose_rung(case), bound, traces)
        if not self.anywhere(bool(found)):
            return []
        reference, margin = traces[Reference.name], margin_of_last_bits(case)
        shaken = [Bound(case, reference, self._shaken(case, by), margin=margin) for by in SHAKES]
        bounds = {name: [*shaken, *self._engine_shaken(case, name)] for name in differing}
        still = {
            name: [d for d in found if not any(b.excess(d)[0] for b in bounds[name])]
            for name, found in differing.items()
        }
        for name, kept in still.items():
            wrong = [d for d in differing[name] if not bound.excess(d)[0]]
            self.skipped[name] |= _keys(wrong) - _keys(kept)
        return self._findings(still, loose_rung(case), bound, traces)

    def _engine_shaken(self, case: Case, name: str) -> Iterator[Bound]:
        """How far last bits take an engine that rounds where the reference does not.

        Between two such runs: a mistake that is made now and then is in one of the others.
        """
        if not spec_of(name).rounds_otherwise:
            return
        runs = [self.again(case, name, by * last_bit(case)) for by in SHAKES_OF_ENGINES]
        for one, other in itertools.pairwise(run for run in runs if run is not None):
            yield Bound(case, one, other, margin=margin_of_last_bits(case))

    def _shaken(self, case: Case, by: int) -> Trace:
        """What the reference computes from parameters that differ ``by`` so many last bits of the
        coarsest dtype in which the case computes something.
        """
        return train_reference(case, self.mesh, self.manner, by * last_bit(case))

    def _differences(self, engine: str, traces: Mapping[str, Trace]) -> list[Difference]:
        found = differences(traces[Reference.name], traces[engine])
        return [d for d in found if self._wants(d.key)]

    def _wants(self, key: Key) -> bool:
        """Whether the case wants it to be compared."""
        return self.case.observe != "losses" or key.rule.is_loss

    def _findings(
        self, differing: Differing, rung: str, bound: Bound | None, traces: Mapping[str, Trace]
    ) -> list[Finding]:
        findings = []
        others = {name: found for name, found in self.witnesses.items() if name in traces}
        for name, found in differing.items():
            agreeing = agreement(name, traces, others | differing)
            findings += tensor_findings(name, found, rung, bound, agreeing, self.mesh.rank)
        return findings

    def _first_overflows(self, differing: Differing, *, finer: bool = False) -> dict[str, int]:
        """By engine the op at which a sum of gradients overflows first on some rank."""
        here = [first_overflow(self.case, found, finer=finer) for found in differing.values()]
        return dict(zip(differing, self._earliest(here), strict=True))

    def _exact_until(self) -> int:
        """The first op that rounds something on some rank: in either precision, or in those of a
        policy.
        """
        return self._earliest([self._exact_here_until()])[0]

    def _earliest(self, here: list[int]) -> list[int]:
        """Of each of these ops the earliest that some rank of the mesh names."""
        ops = torch.tensor(here, device=self.mesh.device)
        dist.all_reduce(ops, op=dist.ReduceOp.MIN, group=self.mesh.everyone)
        return [int(op) for op in ops.tolist()]

    def _exact_here_until(self) -> int:
        """The same on this rank; all of them train the same runs."""
        end, reference = len(self.case.schedule), self.traces[Reference.name]
        runs = (reference, self._truth, self._single)
        pairs = [(a, b) for a, b in itertools.pairwise(runs) if a is not b and b is not reference]
        return min(exact_until(a, b, end) for a, b in pairs)

    @property
    def _truth(self) -> Trace:
        """What the case computes without mixed precision, in float64."""
        return self._trace(uniform(self.case, "float64"))

    @property
    def _single(self) -> Trace:
        """The same in float32."""
        return self._trace(uniform(self.case, "float32"))

    def anywhere(self, here: bool) -> bool:
        """Whether ``here`` holds on any rank of the mesh; every rank asks the same questions in
        order.
        """
        flag = torch.tensor([here], dtype=torch.int32, device=self.mesh.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.mesh.everyone)
        return bool(flag.item())

    def _trace(self, case: Case) -> Trace:
        """What the reference computes in a case on the same mesh; each is trained once."""
        if case == self.case:
            return self.traces[Reference.name]
        if case not in self._trained:
            self._trained[case] = train_reference(case, self.mesh, self.manner)
        return self._trained[case]


SHAKES = (2, -2)
"""By how many last bits parameters differ in the runs that show whether there are digits to judge.

Both ways: what takes a sum that cancels away from zero has an opposite that takes it through. Two,
as a sum of parts is rounded in its parts and again
(corpus/regressions/a-relu-of-a-sum-that-ranks-add-up-in-float16.json).
"""

SHAKES_OF_ENGINES = (2, -3, 5)
"""The same for engines, which are compared with themselves: no two by the same number, as opposite
changes of it may take what is nothing but rounding equally far
(corpus/regressions/a-softmax-is-exact-and-its-ring-trains-what-rounding-leaves.json).
"""

NO_LESS = 2.0
"""A mistake of the case is wrong by at most so many times as much in a finer run."""


def _keys(found: list[Difference]) -> set[Key]:
    return {difference.key for difference in found}


def _before(differing: Differing, ends: Mapping[str, int]) -> Differing:
    """What differs in an op before that of its engine in ``ends``."""
    return {name: [d for d in found if d.key.op < ends[name]] for name, found in differing.items()}


def _may_be_wrong(differing: Differing, bound: Bound) -> bool:
    """Whether the ``bound`` of a finer run leaves anything that :func:`_no_less_wrong` keeps."""
    return any(
        NO_LESS * largest_distance(*d.both) > bound.limit(d.key, d.both[0].dtype)
        for found in differing.values()
        for d in found
        if d.both is not None
    )


def _no_less_wrong(precise: list[Difference], found: list[Difference]) -> list[Difference]:
    """What of a finer run is wrong by at most :data:`NO_LESS` times as much as the case itself."""
    errors = {d.key: largest_distance(*d.both) for d in found if d.both is not None}
    return [
        d
        for d in precise
        if d.both and largest_distance(*d.both) <= NO_LESS * errors.get(d.key, 0.0)
    ]
