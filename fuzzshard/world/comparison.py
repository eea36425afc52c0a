"""Which differences of a case count, by the strictest kind of comparison that applies.

What that takes beyond the traces is trained here: the same runs in higher precision.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from msgspec.structs import replace

from fuzzshard.analysis.dtypes import (
    FINER,
    hooked_dtypes,
    last_bit,
    lifted,
    loose_comparison,
    uniform,
    with_unrounded_steps,
)
from fuzzshard.analysis.schedule_state import first_step
from fuzzshard.analysis.validate import is_valid
from fuzzshard.case.case import Case
from fuzzshard.engines.base import DTYPES
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.reference.engine import Reference
from fuzzshard.engines.reference.manner import PLAIN, Manner
from fuzzshard.engines.registry import engine_of
from fuzzshard.engines.rounding import MonteCarloArithmetic, Shake
from fuzzshard.oracles.allowed import manner_of
from fuzzshard.oracles.bound import Bound, Tensors
from fuzzshard.oracles.compare import Difference, differences
from fuzzshard.oracles.first_rounding import (
    before_rounding_feeds_back,
    differs_where_exact,
    exact_until,
)
from fuzzshard.oracles.judge import agreement, tensor_findings
from fuzzshard.oracles.overflow import first_overflow
from fuzzshard.parts.engines import spec_of
from fuzzshard.training.trace import Key, Trace
from fuzzshard.training.trainer import Trainer
from fuzzshard.verdict import STRICTNESS, Compared, Finding

Again = Callable[[Case, str], Trace | None]
"""Trains an engine, by its name, on another case; None where it refuses that."""

Differing = dict[str, list[Difference]]
"""What differs from the reference, by engine."""


def finer(case: Case) -> dict[str, Case]:
    """Return the case in the precisions of :data:`FINER` that it can be trained in."""
    runs: dict[Case, str] = {}
    for name in FINER if lifted(case) != with_unrounded_steps(case) else ("float64",):
        runs.setdefault(FINER[name](case), name)
    return {name: run for run, name in runs.items() if run != case and is_valid(run)}


def splits_operators(case: Case, engine: str) -> bool:
    """Return whether an engine computes parts of an operator on several ranks.

    Where that rounds, changed inputs do not show: the reference computes the whole.
    """
    return bool(case.tensor_parallel) or engine_of(engine).rounds_otherwise


def train_reference(
    case: Case, mesh: RankMesh, manner: Manner, shake: Shake | None = None
) -> Trace:
    """Return what the reference computes, perhaps with last bits that differ."""
    trace, engine = Trace(), Reference(case, mesh, DTYPES[case.dtype], manner)
    with contextlib.ExitStack() as stack:
        if shake is not None:
            engine.shake(shake)
            if shake.by_operators:
                stack.enter_context(MonteCarloArithmetic(shake))
        Trainer(case, engine, trace).run()
    return trace


def train_as_documented(case: Case, mesh: RankMesh, manner: Manner, trace: Trace) -> Trace:
    """Return what the reference computes in the ``manner`` of the engine that ``trace`` is of.

    Where that engine has gradients of inputs, so may the reference, if undefined gradients become
    zeros; those of parameters it has without.
    """
    reference = train_reference(case, mesh, manner)
    missing = [
        key
        for key, held in reference.tensors.items()
        if key.rule.gradient == "input" and held.tensor is None
    ]
    unexpected = [k for k in missing if k in trace.tensors and trace.tensors[k].tensor is not None]
    if manner.joins_inputs and anywhere(mesh, bool(unexpected)):
        zeros = train_reference(case, mesh, dataclasses.replace(manner, makes_zeros=True))
        reference.tensors |= {key: zeros.tensors[key] for key in unexpected}
    return reference


def anywhere(mesh: RankMesh, here: bool) -> bool:
    """Return whether ``here`` holds on any rank of a mesh; all of them ask."""
    flag = torch.tensor([here], dtype=torch.int32, device=mesh.device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=mesh.everyone)
    return bool(flag.item())


class Judgement(NamedTuple):
    """What a comparison says of all engines on this rank: findings, the kind of comparison of
    the case, and how each engine was compared.
    """

    findings: list[Finding]
    comparison: str
    compared: dict[str, Compared]


class ReferenceComparison:
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
        """By engine the tensors that differ where no digits are left to judge, or only a finer run
        could and the engine has none.
        """
        self.witnesses: Differing = {}
        """What of all engines differs from the reference that each is held to."""
        self._trained: dict[Case, Trace] = {}

    def differences(self, engine: str) -> list[Difference]:
        """Return what differs from the reference, of all that the case wants to be compared."""
        return self._differences(engine, self.traces)

    def judge(self, differing: Differing) -> Judgement:
        """Judge what bitwise comparison found; only a difference makes it worth finding out what
        is due, or a rounding that has to show.

        An engine that differs, or has to, is held to what is documented for it.
        """
        comparisons = {name: self._documented(name, found) for name, found in differing.items()}
        others = {name: each for name, each in comparisons.items() if each is not self}
        found = {name: comparisons[name].differences(name) for name in others}
        for each in (self, *others.values()):
            each.witnesses = differing | found
        plain = {name: here for name, here in differing.items() if name not in others}
        judged = [each._judge({name: found[name]}) for name, each in others.items()]
        judged += [self._judge(plain)] if plain or not judged else []
        return Judgement(
            [finding for judgement in judged for finding in judgement.findings],
            min((judgement.comparison for judgement in judged), key=STRICTNESS.__getitem__),
            {name: how for judgement in judged for name, how in judgement.compared.items()},
        )

    def _documented(self, engine: str, found: list[Difference]) -> ReferenceComparison:
        """Return the comparison with the reference in the manner that is documented for an engine;
        this one where nothing differs or has to, or the manner makes no difference: only engines
        that are held to one reference can be seen to agree against it.
        """
        if not self.anywhere(bool(found) or _rounds_as_predicted(self.case, engine)):
            return self
        plain, trace = self.traces[Reference.name], self.traces[engine]
        manner, held = manner_of(self.case, engine, trace, self.mesh), self
        while self.anywhere(manner != held.manner):
            reference = train_as_documented(self.case, self.mesh, manner, trace)
            traces = {**self.traces, Reference.name: reference}
            held = ReferenceComparison(self.case, self.mesh, traces, self.again, manner)
            if spec_of(engine).applies_groups:
                apart = manner.apart | held._first_gradients(engine)
                manner = dataclasses.replace(manner, apart=apart)
        changes = bool(differences(plain, held.traces[Reference.name]))
        return held if self.anywhere(changes) else self

    def _first_gradients(self, engine: str) -> frozenset[tuple[int, str]]:
        """Return the gradients that differ in the first op in which anything does on some rank.

        A group reduces what it has after the backward of each of its modules
        (``FSDPParamGroup.post_backward``). What waits of earlier backwards may be all by then.
        """
        found, end = self.differences(engine), len(self.case.schedule)
        (first,) = self._earliest([min((d.key.op for d in found), default=end)])
        here = (d.key for d in found if d.key.op == first and d.key.rule.gradient == "reduced")
        everywhere: list[Any] = [None] * dist.get_world_size(self.mesh.everyone)
        keys = {(key.op, key.name) for key in here}
        dist.all_gather_object(everywhere, keys, group=self.mesh.everyone)
        return frozenset[tuple[int, str]]().union(*everywhere)

    def _judge(self, differing: Differing) -> Judgement:
        """Return what this reference says of some engines."""
        if not self.anywhere(any(differing.values())):
            comparisons = dict.fromkeys(differing, "bitwise")
            return Judgement([], "bitwise", self._compared(comparisons))
        overflow = self._first_overflows(differing)
        dyadic = self.case.values == "dyadic"
        exact = self._earliest([self._exact_here_until()])[0] if dyadic else 0
        promised = self._promised_bits()
        strict: Differing = {name: [] for name in differing}
        loose: Differing = {name: [] for name in differing}
        for name, found in differing.items():
            for difference in found:
                key = difference.key
                is_exact = key.op < exact and not engine_of(name).rounds_otherwise
                is_exact |= _adds_up_alike(self.case, name) and promised(difference)
                is_exact = is_exact and key.op < overflow[name]
                (strict if is_exact else loose)[name].append(difference)
        findings = self._findings(strict, "exact", None, self.traces)
        if self.anywhere(any(loose.values())):
            findings += self._loose_findings(loose, overflow)
        comparison = "exact" if exact >= len(self.case.schedule) else loose_comparison(self.case)
        comparisons = {
            name: loose_comparison(self.case)
            if loose[name]
            else "exact"
            if strict[name]
            else "bitwise"
            for name in differing
        }
        return Judgement(findings, comparison, self._compared(comparisons))

    def _compared(self, comparisons: Mapping[str, str]) -> dict[str, Compared]:
        """How each engine was compared, by the kind of comparison that its differences took."""
        reference = self.traces[Reference.name].tensors
        compared = {}
        for name, comparison in comparisons.items():
            recorded = sum(
                key in reference and self._wants(key) for key in self.traces[name].tensors
            )
            skipped = len(self.skipped[name])
            compared[name] = Compared(
                comparison=comparison, tensors=recorded - skipped, skipped=skipped
            )
        return compared

    def _loose_findings(self, differing: Differing, overflow: Mapping[str, int]) -> list[Finding]:
        """Return what rounding does not explain: in the precision of the case, then in finer ones.

        In the precision of the case up to the first step and the first ``overflow`` only: Adam
        makes a whole step of a gradient that is nothing but rounding. Both are needed:
        ``fully_shard`` divides gradients in float64 as it does in float16
        (``_get_gradient_divide_factors``), and otherwise in float32. Whether something is there,
        and its shape and dtype, no rounding explains, but an overflow does: a ``GradScaler``
        leaves out that step, and the optimizer has no state of it.
        """
        if _is_finest(self.case):
            return self._beyond_rounding(self.case, differing, self.traces)
        step = first_step(self.case)
        ends = {name: min(step, end) for name, end in overflow.items()}
        precise = [
            replace(finding, precise=name)
            for name, case in finer(self.case).items()
            for finding in self._finer_findings(case, differing, ends)
        ]
        early = {
            name: before_rounding_feeds_back(found, step)
            for name, found in _before(differing, overflow).items()
        }
        distinct: dict[tuple[object, ...], Finding] = {}
        for finding in (*precise, *self._beyond_rounding(self.case, early, self.traces)):
            place = finding.engine, finding.op, finding.oracle, finding.name
            distinct.setdefault(place, finding)
        return [*distinct.values()]

    def _finer_findings(
        self, case: Case, differing: Differing, ends: Mapping[str, int]
    ) -> list[Finding]:
        """What the engines that differ do otherwise than the reference in a finer precision, too.

        It has to be there in both: torch may take another path in the finer one, with a mistake of
        its own.
        """
        traces = {Reference.name: self._trace(case)}
        for name, found in differing.items():
            if self.anywhere(any(d.comparable for d in found)):
                trace = self.again(case, name)
                if trace is not None:
                    traces[name] = trace
                elif _is_finest(case):
                    late = [d for d in found if d.comparable and d.key.op >= ends[name]]
                    self.skipped[name] |= _keys(late)
        still = {
            name: _no_less_wrong(self._differences(name, traces), differing[name])
            for name in traces
            if name != Reference.name
        }
        still = _before(still, self._first_overflows(still, to_huge=True))
        return self._beyond_rounding(case, still, traces)

    def _beyond_rounding(
        self, case: Case, differing: Differing, traces: Mapping[str, Trace]
    ) -> list[Finding]:
        """Return what differs by more than last bits move the reference: those of its operators as
        well for engines that compute one in parts, on several ranks.
        """
        findings = []
        for in_parts in (False, True):
            chosen = {n: d for n, d in differing.items() if splits_operators(case, n) is in_parts}
            if chosen:
                findings += self._beyond(case, chosen, traces, by_operators=in_parts)
        return findings

    def _beyond(
        self,
        case: Case,
        differing: Differing,
        traces: Mapping[str, Trace],
        *,
        by_operators: bool,
    ) -> list[Finding]:
        """Return the same for engines of one kind.

        Runs of :meth:`_rounded_otherwise` come until all is explained, or there are no more.
        """
        reference = traces[Reference.name]
        bound = Bound(case, reference)
        still = {name: bound.leaves(found) for name, found in differing.items()}
        others = self._rounded_otherwise(case, by_operators=by_operators)
        while self.anywhere(any(d.comparable for found in still.values() for d in found)):
            if (other := next(others, None)) is None:
                break
            bound.move(reference.values, other)
            still = {name: bound.leaves(found) for name, found in still.items()}
        if _is_finest(case):
            for name, found in differing.items():
                self.skipped[name] |= {key for key in _keys(found) if not bound.has_digits(key)}
        return self._findings(still, loose_comparison(case), bound, traces)

    def _rounded_otherwise(self, case: Case, *, by_operators: bool) -> Iterator[Tensors[Key]]:
        """Yield what the reference computes with other last bits, then what float64 has in place
        of finite values of a coarser case: rounding has taken the reference itself that far.
        """
        for bits, seed in SHAKES:
            shake = Shake(bits * last_bit(case), seed, by_operators)
            yield self._shaken(case, shake).values
        if not _is_finest(case):
            values = self._trace(case).values
            finite = {key for key, v in values.items() if v is not None and v.isfinite().all()}
            yield {k: v for k, v in self._truth.values.items() if k in finite}

    def _shaken(self, case: Case, by: Shake) -> Trace:
        """Return what the reference computes on numbers that differ."""
        return train_reference(case, self.mesh, self.manner, by)

    def _differences(self, engine: str, traces: Mapping[str, Trace]) -> list[Difference]:
        found = differences(traces[Reference.name], traces[engine])
        return [d for d in found if self._wants(d.key)]

    def _wants(self, key: Key) -> bool:
        """Return whether the case wants it to be compared."""
        return self.case.observe != "losses" or key.rule.is_loss

    def _findings(
        self,
        differing: Differing,
        comparison: str,
        bound: Bound | None,
        traces: Mapping[str, Trace],
    ) -> list[Finding]:
        findings = []
        others = {name: found for name, found in self.witnesses.items() if name in traces}
        for name, found in differing.items():
            agreeing = agreement(name, traces, others | differing)
            findings += tensor_findings(name, found, comparison, bound, agreeing, self.mesh.rank)
        return findings

    def _first_overflows(self, differing: Differing, *, to_huge: bool = False) -> dict[str, int]:
        """By engine the op at which something overflows first on some rank."""
        here = [first_overflow(self.case, f, to_huge=to_huge) for f in differing.values()]
        return dict(zip(differing, self._earliest(here), strict=True))

    def _promised_bits(self) -> Callable[[Difference], bool]:
        """Says which differences of gradients no rounding explains, where values are apart: up to
        the first step all are positive, so that no part of a sum has more bits than the sum.
        """
        if self.case.values != "apart":
            return lambda difference: False
        truth, end = self._truth, first_step(self.case)
        return lambda difference: (
            bool(difference.key.rule.gradient)
            and difference.key.op < end
            and differs_where_exact(difference, truth)
        )

    def _earliest(self, here: list[int]) -> list[int]:
        """Of each of these ops the earliest that some rank of the mesh names."""
        ops = torch.tensor(here, device=self.mesh.device)
        dist.all_reduce(ops, op=dist.ReduceOp.MIN, group=self.mesh.everyone)
        return [int(op) for op in ops.tolist()]

    def _exact_here_until(self) -> int:
        """Return the first op that rounds something on this rank: in either precision, or in those
        of a policy. All ranks train the same runs.
        """
        end, reference = len(self.case.schedule), self.traces[Reference.name]
        runs = (reference, self._truth, self._trace(uniform(self.case, "float32")))
        pairs = [(a, b) for a, b in itertools.pairwise(runs) if a is not b and b is not reference]
        return min(exact_until(a, b, end, last_bit(self.case)) for a, b in pairs)

    @property
    def _truth(self) -> Trace:
        """What the case computes without mixed precision, in float64."""
        return self._trace(uniform(self.case, "float64"))

    def anywhere(self, here: bool) -> bool:
        """Return whether ``here`` holds on any rank of the mesh; every rank asks the same
        questions in order.
        """
        return anywhere(self.mesh, here)

    def _trace(self, case: Case) -> Trace:
        """Return what the reference computes in a case on the same mesh; each is trained once."""
        if case == self.case:
            return self.traces[Reference.name]
        if case not in self._trained:
            rounds = self.manner.in_half if hooked_dtypes(case) else {}
            manner = dataclasses.replace(self.manner, in_half=rounds)
            self._trained[case] = train_reference(case, self.mesh, manner)
        return self._trained[case]


SHAKES = tuple((bits, seed) for seed in range(4) for bits in (2, -3))
"""By how many last bits numbers differ in the runs that measure what rounding does, and the seeds
of their signs.

Both ways: what takes a sum that cancels away from zero has an opposite that takes it through. More
than one, as a sum of parts is rounded in its parts and again
(corpus/regressions/a-relu-of-a-sum-that-ranks-add-up-in-float16.json).
"""

NO_LESS = 2.0
"""A mistake of the case is wrong by at most so many times as much in a finer run."""


def _keys(found: list[Difference]) -> set[Key]:
    return {difference.key for difference in found}


def _adds_up_alike(case: Case, engine: str) -> bool:
    """Return whether an engine has the terms of the reference: some get rows of other ranks, and
    schedules divide gradients by what losses are multiplied by (``loss_scale``).
    """
    spec = spec_of(engine)
    return not (spec.spreads or (spec.in_stages and case.pipelining.scale_grads))


def _rounds_as_predicted(case: Case, engine: str) -> bool:
    """Return whether a hook averages gradients in half precision, and in one way: finer cases have
    it, too.
    """
    return spec_of(engine).averages_in_half(uniform(case, "float64")) is not None


def _is_finest(case: Case) -> bool:
    """Return whether it computes in float64 from beginning to end."""
    return case == uniform(case, "float64")


def _before(differing: Differing, ends: Mapping[str, int]) -> Differing:
    """Return what differs in an op before that of its engine in ``ends``."""
    return {name: [d for d in found if d.key.op < ends[name]] for name, found in differing.items()}


def _no_less_wrong(precise: list[Difference], found: list[Difference]) -> list[Difference]:
    """What of a finer run is wrong by at most :data:`NO_LESS` times as much as the case itself."""
    errors = {d.key: d.error for d in found}
    return [d for d in precise if d.error <= NO_LESS * errors.get(d.key, 0.0)]
