"""The reducer: from a failing case to a smallest one that still fails.

It runs the passes of :mod:`fuzzshard.shrink.tiers` to a fixpoint, then takes a detour over a
bigger case when one still fails, and stops when neither helps. Whatever the order of the tiers, a
case replaces another one only if it is smaller in :func:`fuzzshard.analysis.order.size_order`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.order import Size, size_order
from fuzzshard.case.case import Case, Freeze, TensorSpec
from fuzzshard.case.codec import encode
from fuzzshard.case.graph import Block, Call, Child, TensorOp, walk
from fuzzshard.case.paths import is_within
from fuzzshard.parts.leaf import Leaf
from fuzzshard.shrink.passes import Edit, Pass, put, put_module
from fuzzshard.shrink.repair import repaired
from fuzzshard.shrink.tiers import TIERS

DETOUR_EVALUATIONS = 40
"""How many evaluations a bigger case may use to become smaller than the one it came from."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """When to stop: whichever comes first."""

    max_evaluations: int = 1000
    max_seconds: float = 600.0


_BUDGET = Budget()
_PASSES = tuple(each for tier in TIERS for each in tier)


@dataclasses.dataclass(frozen=True)
class ShrinkStep:
    """A smaller failing case was found by the pass ``name``."""

    name: str
    case: Case
    size: Size
    evaluations: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class ShrinkResult:
    """The smallest failing case met. Not ``finished``: the budget or the user ended the search."""

    case: Case
    evaluations: int
    seconds: float
    finished: bool
    trail: tuple[ShrinkStep, ...]


def shrink(
    case: Case,
    still_fails: Callable[[Case], bool],
    *,
    budget: Budget = _BUDGET,
    on_progress: Callable[[ShrinkStep], None] | None = None,
) -> ShrinkResult:
    """Reduces ``case``, for which ``still_fails`` is true, to a local minimum of ``size_order``.

    ``still_fails`` is called with valid cases only, never twice with the same one. To resume an
    unfinished reduction, start again from its result. Raises :class:`ValueError` when ``case``
    does not fail to begin with.
    """
    reducer = _Reducer(case, still_fails, budget, on_progress)
    try:
        reducer.run()
        finished = True
    except (_Exhausted, KeyboardInterrupt):
        finished = False
    return ShrinkResult(
        reducer.best, len(reducer.answers), reducer.seconds, finished, tuple(reducer.trail)
    )


class _Exhausted(Exception):
    """The budget is used up."""


class _LimitReached(Exception):
    """A detour has used the evaluations that it may."""


class _Reducer:
    """``current`` is being reduced; ``best`` is the smallest failing case so far, always."""

    def __init__(
        self,
        case: Case,
        still_fails: Callable[[Case], bool],
        budget: Budget,
        on_progress: Callable[[ShrinkStep], None] | None,
    ) -> None:
        self.current = self.best = case
        self.size = size_order(case)
        self.still_fails, self.budget = still_fails, budget
        self.on_progress = on_progress
        self.answers: dict[bytes, bool] = {}
        self.limit = math.inf
        self.started = time.monotonic()
        self.detoured: set[bytes] = set()
        self.trail: list[ShrinkStep] = []

    @property
    def seconds(self) -> float:
        """Return the seconds since shrinking began."""
        return time.monotonic() - self.started

    def run(self) -> None:
        """Try candidates until no pass offers a smaller case that fails."""
        if not self.fails(self.best):
            raise ValueError("the case to shrink does not fail; confirm it first")
        for each in _PASSES:
            if each.independent:
                self.halves(each)
            else:
                self.singles(each)
        self.rounds()
        while self.detour():
            pass

    def fails(self, candidate: Case) -> bool:
        """Whether a candidate fails; asked once of each. Raises where no more may be asked."""
        key = encode(candidate)
        if key not in self.answers:
            most, count = self.budget, len(self.answers)
            if count >= most.max_evaluations or self.seconds >= most.max_seconds:
                raise _Exhausted
            if count >= self.limit:
                raise _LimitReached
            self.answers[key] = self.still_fails(candidate)
        return self.answers[key]

    def halves(self, each: Pass) -> None:
        """All edits of a pass at once, then by halves, left to right; those that helped go with
        every one of the others.
        """
        base, done = self.current, tuple[int, ...]()
        edits = tuple(each.edits(base))
        stack = [tuple(range(len(edits)))] if edits else []
        while stack:
            chunk, *stack = stack
            taken = done + chunk
            candidate = self.apply(base, [edits[i] for i in sorted(taken)])
            if candidate is not None and self.fails(candidate):
                self.accept(each.name, candidate)
                done = taken
            elif len(chunk) > 1:
                middle = len(chunk) // 2
                stack = [chunk[:middle], chunk[middle:], *stack]

    def singles(self, each: Pass) -> bool:
        """Edits of a pass one by one, round and round, until none helps; whether one did."""
        at, passed, helped = 0, 0, False
        edits = list(each.edits(self.current))
        while passed < len(edits):
            at %= len(edits)
            candidate = self.apply(self.current, [edits[at]])
            if candidate is not None and self.fails(candidate):
                self.accept(each.name, candidate)
                edits, passed, helped = list(each.edits(candidate)), 0, True
            else:
                at, passed = at + 1, passed + 1
        return helped

    def rounds(self) -> None:
        """Single edits, until none helps; a tier that helped starts over from the first."""
        tier = 0
        while tier < len(TIERS):
            helped = [self.singles(each) for each in TIERS[tier]]
            tier = 0 if any(helped) else tier + 1

    def apply(self, base: Case, edits: Sequence[Edit]) -> Case | None:
        """Return the repaired result, if it is valid and smaller than the current case."""
        changed = base
        for edit in reversed(edits):
            changed = edit(changed)
        candidate = repaired(changed) if changed != base else None
        return candidate if candidate is not None and size_order(candidate) < self.size else None

    def accept(self, name: str, candidate: Case) -> None:
        """``candidate`` fails and is smaller than the current case."""
        self.go_to(candidate)
        if self.size < size_order(self.best):
            self.best = candidate
            progress = ShrinkStep(name, candidate, self.size, len(self.answers), self.seconds)
            self.trail.append(progress)
            if self.on_progress:
                self.on_progress(progress)

    def go_to(self, case: Case) -> None:
        """Reduces ``case`` from now on."""
        self.current, self.size = case, size_order(case)

    def detour(self) -> bool:
        """Tries each bigger case once; true when one led to a smaller one."""
        origin = self.best
        for edit in detours(origin):
            bigger = repaired(edit(origin))
            if bigger is None or (key := encode(bigger)) in self.detoured:
                continue
            if not self.fails(bigger):
                continue
            self.detoured.add(key)
            self.go_to(bigger)
            self.limit = len(self.answers) + DETOUR_EVALUATIONS
            with contextlib.suppress(_LimitReached):
                self.rounds()
            self.limit = math.inf
            self.go_to(self.best)
            if self.best != origin:
                self.rounds()
                return True
        return False


def detours(case: Case) -> Iterator[Edit]:
    """Leaves and list groups taken apart, freezes by parameter, a float input beside ids.

    Passes may then get past a local minimum: a feed-forward leaf cannot lose one of its two
    Linears; the block it stands for can. Parameters keep their FQNs, and with them their values.
    """
    found = inferred(case)
    if all(t.kind == "ids" for t in case.inputs.tensors):
        inputs = replace(case.inputs, tensors=(*case.inputs.tensors, TensorSpec(size=1)))
        yield put(inputs=inputs, model=replace(case.model, inputs=(*case.model.inputs, "extra")))
    for path, module in walk(case.model):
        if isinstance(module, Leaf) and (parts := module.apart(found.width(path))):
            yield put_module(path, _in_sequence(parts))
    for index, group in enumerate(case.wrap):
        if len(group.modules) > 1:
            single = tuple(replace(group, modules=(m,)) for m in group.modules)
            yield put(wrap=(*case.wrap[:index], *single, *case.wrap[index + 1 :]))
    for index, freeze in enumerate(case.freezes):
        fqns = [f for f in found.parameters if is_within(f, freeze.target) and f != freeze.target]
        if len(fqns) > 1:
            each = tuple(Freeze(target=f, after_wrap=freeze.after_wrap) for f in fqns)
            yield put(freezes=(*case.freezes[:index], *each, *case.freezes[index + 1 :]))


def _in_sequence(parts: dict[str, Leaf]) -> Block:
    first, second = parts
    return Block(
        children=tuple(Child(name=name, module=leaf) for name, leaf in parts.items()),
        nodes=(
            Call(name="h0", module=first, args=("x",)),
            TensorOp(name="h1", op="relu", args=("h0",)),
            Call(name="h2", module=second, args=("h1",)),
        ),
        outputs=("h2",),
    )
