"""Which parameters have a gradient, and which a state of the optimizer, after each op of a
schedule.

A documented error follows from that: a checkpoint lacks the state of a parameter.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from fuzzshard.analysis.autograd import AutogradGraph, Node, reached
from fuzzshard.analysis.communication import fills_unused
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.optimized import shares
from fuzzshard.analysis.schedule_state import ScheduleState, follow
from fuzzshard.analysis.sync_flags import UNMANAGED
from fuzzshard.case.case import Case
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.op import BY_NAME


@dataclasses.dataclass
class Known:
    """A set of parameters of which not all may be known: ``sure`` are in it, ``maybe`` are or are
    not.
    """

    sure: set[str] = dataclasses.field(default_factory=set)
    maybe: set[str] = dataclasses.field(default_factory=set)

    def add(self, names: Known) -> None:
        """Adds what is, or may be, in ``names``."""
        self.sure |= names.sure
        self.maybe = (self.maybe | names.maybe) - self.sure

    def remove(self, names: set[str], *, sure: bool) -> None:
        """Removes ``names``, or what may be gone, unless ``sure``."""
        self.maybe = (self.maybe - names) if sure else self.maybe | (self.sure & names)
        self.sure -= names

    def within(self, names: set[str]) -> Known:
        """Return those of ``names``."""
        return Known(self.sure & names, self.maybe & names)

    def copy(self) -> Known:
        """Return a set of its own."""
        return Known(set(self.sure), set(self.maybe))

    @property
    def all(self) -> set[str]:
        """All that may be in it."""
        return self.sure | self.maybe


@functools.lru_cache(maxsize=8)
def lacks_states(case: Case, engine: str) -> tuple[int, ...]:
    """Return the ops that may load a checkpoint which lacks a state of the optimizer."""
    loads = any(op.loads for op in case.schedule)
    return tuple(_Walk(case, engine).lacks()) if loads else ()


class _Walk:
    """Follows a schedule under an engine whose parameters have the names of the plain model."""

    def __init__(self, case: Case, engine: str) -> None:
        self.case = case
        self.found = inferred(case)
        self.sharded = spec_of(engine).applies_groups
        self.autograd = AutogradGraph(case, self.found)
        self.at = ScheduleState(case)
        parts = shares(case.optimizer, self.found.parameters)
        optimizers = zip(case.optimizer.each.values(), parts, strict=True)
        self.stateful = [{*fqns} for each, fqns in optimizers if each.has_state]
        """The parameters of each optimizer whose steps leave a state."""
        self.grads = Known()
        self.unreduced: dict[int | None, set[str]] = {}
        self.state = Known()
        self.saved = Known()

    def lacks(self) -> Iterator[int]:
        """In the order of the ops."""
        for at in follow(self.case):
            self.at, op, taken = at, at.op, self.autograd.follow(at)
            if op.takes:
                self.at.skipped = not taken
                self._backward(taken)
            if op.zeroes:
                self._zero_grad()
            if op.loads:
                yield from self._load()
            if op.updates:
                for fqns in self.stateful:
                    self.state.add(self.grads.within(self.at.optimized & fqns))
            if op.via:
                if op.via in BY_NAME:
                    self._initialise()
                self.saved = self.state.copy()
            if op.casts_to or op.rebuilds is not None:
                self.state = Known()
            if op.aborts or op.rebuilds is not None:
                self.grads = Known()
                self.unreduced.clear()

    def _backward(self, losses: list[Node]) -> None:
        """``fully_shard`` hands out a gradient when it is reduced, and so is what no group
        manages.
        """
        came = {fqn for node in reached(losses) for fqn in node.parameters} - self.at.frozen
        if not self.sharded:
            self.grads.add(Known(came))
            return
        for fqn in came:
            self.unreduced.setdefault(self.found.owners[fqn], set()).add(fqn)
        for owner, held in self.unreduced.items():
            if self.at.flags.synced(owner):
                sure = owner is UNMANAGED or bool(held & came)
                new = held - self.at.stepped
                self.grads.add(Known(new) if sure else Known(maybe=new))
                self.grads.remove(held & self.at.stepped, sure=sure)
                if sure:
                    held.clear()
        for fqn, owner in self.found.owners.items():
            if (
                fills_unused(self.case, owner)
                and self.at.flags.synced(owner)
                and fqn not in self.at.frozen
            ):
                self.grads.add(Known(maybe={fqn}))

    def _zero_grad(self) -> None:
        """``Optimizer.zero_grad``, perhaps in place."""
        if self.at.op.zeroes == "none":
            self.grads.sure -= self.at.optimized
            self.grads.maybe -= self.at.optimized

    def _initialise(self) -> None:
        """``_init_optim_state``: an optimizer without state makes a step on zeros, if there are no
        gradients.

        Afterwards it has no gradients either.
        """
        for fqns in self.stateful:
            held = self.at.optimized & fqns
            state, grads = self.state.within(held), self.grads.within(held)
            if state.sure or grads.sure:
                continue
            trainable, doubtful = held - self.at.frozen, state.maybe or grads.maybe
            self.state.add(Known(maybe=trainable) if doubtful else Known(trainable))

    def _load(self) -> Iterator[int]:
        op, index = self.at.op, self.at.index
        if self.at.saved == "state_dict":
            self.state = self.saved.copy()
            if op.replaces_parameters:  # the parameters are others now
                self.grads = Known()
            return
        if self.at.saved == "stateful":
            if self.state.all - self.saved.sure:
                yield index
            if not self.state.all:
                self.state.add(Known(maybe=self.saved.all))
            return
        self._initialise()
        if self.state.all - self.saved.sure:
            yield index
        sets = op.replaces_parameters or self.case.optimizer.scheduler or self.at.saved_with
        if (sets or self.at.saved == "get_state_dict") and self.state.all:
            needed = self.at.optimized - self.at.frozen
            if needed - self.state.sure:
                yield index
