"""The reducer: from a failing case to a smallest one that still fails.

It runs the passes of :mod:`fuzzshard.shrink.tiers` to a fixpoint, then takes a detour over a
bigger case when one still fails, and stops when neither helps. Whatever the order of the tiers, a
case replaces another one only if it is smaller in :func:`fuzzshard.analysis.order.size_order`.

The search is written as *walks*: the candidates to try as long as every one passes, each with how
the walk goes on from it if it fails. So what comes next can run before the answer is there
(:mod:`fuzzshard.shrink.evaluate`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.order import Size, size_order
from fuzzshard.case.case import Case, Freeze, TensorSpec
from fuzzshard.case.codec import encode
from fuzzshard.case.graph import Block, Call, Child, TensorOp, walk
from fuzzshard.case.paths import is_within
from fuzzshard.parts.leaf import Leaf
from fuzzshard.shrink.evaluate import Budget, Evaluations, Exhausted, LimitReached
from fuzzshard.shrink.passes import Edit, Pass, put, put_module
from fuzzshard.shrink.repair import repaired
from fuzzshard.shrink.tiers import TIERS

DETOUR_EVALUATIONS = 40
"""How many evaluations a bigger case may use to become smaller than the one it came from."""

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
    """The smallest failing case met. Not ``finished``: the budget or the user ended the search.

    ``evaluations`` are those that the search needed; with several workers more were run, ahead and
    in vain.
    """

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
    workers: int = 1,
) -> ShrinkResult:
    """Reduces ``case``, for which ``still_fails`` is true, to a local minimum of ``size_order``.

    ``still_fails`` is called with valid cases only, never twice with the same one; with several
    ``workers`` from that many threads at once. The result does not depend on ``workers``: of the
    candidates tried at once the first one in order is taken. To resume an unfinished reduction,
    start again from its result. Raises :class:`ValueError` when ``case`` does not fail to begin
    with.
    """
    evaluations = Evaluations(still_fails, budget, workers)
    reducer = _Reducer(case, evaluations, on_progress)
    try:
        with evaluations:
            reducer.run()
        finished = True
    except (Exhausted, KeyboardInterrupt):
        finished = False
    return ShrinkResult(
        reducer.best, evaluations.count, evaluations.seconds, finished, tuple(reducer.trail)
    )


class _Step(NamedTuple):
    """What a candidate of a walk stands for: the pass that made it, and the walk if it fails."""

    name: str
    go_on: Callable[[], _Walk]


_Walk = Iterator[tuple[Case, _Step]]


class _Reducer:
    """``current`` is being reduced; ``best`` is the smallest failing case so far, always."""

    def __init__(
        self,
        case: Case,
        evaluations: Evaluations,
        on_progress: Callable[[ShrinkStep], None] | None,
    ) -> None:
        self.current = self.best = case
        self.size = size_order(case)
        self.evaluations = evaluations
        self.on_progress = on_progress
        self.detoured: set[bytes] = set()
        self.trail: list[ShrinkStep] = []

    def run(self) -> None:
        """Returns at a fixpoint."""
        if self.evaluations.first_failing(iter([(self.best, None)])) is None:
            raise ValueError("the case to shrink does not fail; confirm it first")
        self.follow(self.sweep())
        self.follow(self.rounds())
        while self.detour():
            pass

    def follow(self, walk: _Walk) -> None:
        """Takes every candidate that fails, until all that are left of a walk pass."""
        while found := self.evaluations.first_failing(walk):
            candidate, step = found
            self.accept(step.name, candidate)
            walk = step.go_on()

    def sweep(self, number: int = 0, begun: _Walk | None = None) -> _Walk:
        """Every pass from ``number`` on, all its edits at once, then by halves; exclusive ones one
        by one.

        ``begun`` is what is left of the first of them.
        """
        for place, each in enumerate(_PASSES[number:], number):
            if begun is not None:
                yield from begun
                begun = None
            elif each.independent:
                edits = tuple(each.edits(self.current))
                yield from self.halves(place, self.current, edits, (), [tuple(range(len(edits)))])
            else:
                yield from self.singles(each, 0, functools.partial(self._sweep_singles, place))

    def _sweep_singles(self, place: int, start: int) -> _Walk:
        go_on = functools.partial(self._sweep_singles, place)
        return self.sweep(place, self.singles(_PASSES[place], start, go_on))

    def halves(
        self,
        place: int,
        base: Case,
        edits: tuple[Edit, ...],
        done: tuple[int, ...],
        stack: list[tuple[int, ...]],
    ) -> _Walk:
        """Chunks of the edits of ``base``, left to right; those ``done`` go with every one of
        them.
        """
        for chunk, rest in _if_all_pass(stack if edits else []):
            taken = done + chunk
            candidate = self.apply(base, [edits[i] for i in sorted(taken)])
            if candidate is not None:
                left = functools.partial(self.halves, place, base, edits, taken, rest)
                yield (
                    candidate,
                    _Step(_PASSES[place].name, functools.partial(self._sweep_on, place, left)),
                )

    def _sweep_on(self, place: int, left: Callable[[], _Walk]) -> _Walk:
        return self.sweep(place, left())

    def rounds(
        self, tier: int = 0, number: int = 0, start: int = 0, *, helped: bool = False
    ) -> _Walk:
        """Single edits, round and round, until none helps; a tier that helped starts over from the
        first.
        """
        while tier < len(TIERS):
            for place, each in enumerate(TIERS[tier][number:], number):
                yield from self.singles(
                    each, start, functools.partial(self._round_on, tier, place)
                )
                start = 0
            tier, number, helped = (0 if helped else tier + 1), 0, False

    def _round_on(self, tier: int, number: int, start: int) -> _Walk:
        return self.rounds(tier, number, start, helped=True)

    def singles(self, each: Pass, start: int, go_on: Callable[[int], _Walk]) -> _Walk:
        """Every edit of a pass by itself, from that at ``start`` on."""
        edits = list(each.edits(self.current))
        for i in range(len(edits)):
            at = (start + i) % len(edits)
            candidate = self.apply(self.current, [edits[at]])
            if candidate is not None:
                yield candidate, _Step(each.name, functools.partial(go_on, at))

    def apply(self, base: Case, edits: Sequence[Edit]) -> Case | None:
        """The repaired result, if it is valid and smaller than the current case."""
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
            count, seconds = self.evaluations.count, self.evaluations.seconds
            progress = ShrinkStep(name, candidate, self.size, count, seconds)
            self.trail.append(progress)
            if self.on_progress:
                self.on_progress(progress)

    def go_to(self, case: Case) -> None:
        """Reduces ``case`` from now on."""
        self.current, self.size = case, size_order(case)

    def detour(self) -> bool:
        """Tries each bigger case once; true when one led to a smaller one."""
        origin = self.best
        while found := self.evaluations.first_failing(self.bigger(origin)):
            bigger, key = found
            self.detoured.add(key)
            self.go_to(bigger)
            try:
                with self.evaluations.at_most(DETOUR_EVALUATIONS):
                    self.follow(self.rounds())
            except LimitReached:
                pass
            self.go_to(self.best)
            if self.best != origin:
                self.follow(self.rounds())
                return True
        return False

    def bigger(self, origin: Case) -> Iterator[tuple[Case, bytes]]:
        """The bigger cases that ``origin`` can be left over, but for those that were."""
        for edit in detours(origin):
            candidate = repaired(edit(origin))
            if candidate is not None and (key := encode(candidate)) not in self.detoured:
                yield candidate, key


def _if_all_pass(
    stack: list[tuple[int, ...]],
) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """Chunks in the order to try while every one passes, each with what is left to try if it
    fails.
    """
    while stack:
        chunk, *stack = stack
        yield chunk, stack
        if len(chunk) > 1:
            middle = len(chunk) // 2
            stack = [chunk[:middle], chunk[middle:], *stack]


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
