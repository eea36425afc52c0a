"""Which parameters have a gradient, and which a state of the optimizer, after each op of a
schedule.

Two documented errors follow from that: a checkpoint that lacks the state of a parameter, and the
foreach implementation of ``zero_grad`` over plain tensors and DTensors.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Iterator

from fuzzshard.analysis.autograd import AutogradGraph, Node, Unwatched, reached
from fuzzshard.analysis.communication import fills_unused
from fuzzshard.analysis.dtypes import held_dtype
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.optimized import shares
from fuzzshard.analysis.schedule_state import ScheduleState, follow
from fuzzshard.analysis.sync_flags import UNMANAGED
from fuzzshard.analysis.tensor_parallel import tensor_dims
from fuzzshard.case.case import Case
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.op import BY_NAME


class Lack(enum.Enum):
    """What an op of the schedule cannot be given."""

    SAVED_STATE = "the checkpoint lacks a state of the optimizer"
    ONE_KIND_OF_GRADIENT = "gradients are plain tensors and DTensors"


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
        """Those of ``names``."""
        return Known(self.sure & names, self.maybe & names)

    def copy(self) -> Known:
        """A set of its own."""
        return Known(set(self.sure), set(self.maybe))

    @property
    def all(self) -> set[str]:
        """All that may be in it."""
        return self.sure | self.maybe


@functools.lru_cache(maxsize=8)
def lacks(case: Case, engine: str) -> tuple[tuple[Lack, int, bool], ...]:
    """What is lacking, at which op, and whether that is certain; up to the first that is
    certain.
    """
    loads = any(op.loads for op in case.schedule)
    zeroes = case.optimizer.foreach and any(op.zeroes == "zero" for op in case.schedule)
    found: list[tuple[Lack, int, bool]] = []
    if not loads and not zeroes:
        return ()
    for lack in _Walk(case, engine).lacks():
        found.append(lack)
        if lack[2]:
            break
    return tuple(found)


class _Walk:
    """Follows a schedule under an engine whose parameters have the names of the plain model."""

    def __init__(self, case: Case, engine: str) -> None:
        self.case = case
        self.found = inferred(case)
        self.sharded = spec_of(engine).applies_groups
        self.all_dtensors = spec_of(engine).names_dims
        self.autograd = AutogradGraph(case, self.found, Unwatched())
        self.at = ScheduleState(case)
        parts = shares(case.optimizer, self.found.parameters)
        optimizers = zip(case.optimizer.each.values(), parts, strict=True)
        self.stateful = [{*fqns} for each, fqns in optimizers if each.has_state]
        """The parameters of each optimizer whose steps leave a state."""
        self.grads = Known()
        self.unreduced: dict[int | None, set[str]] = {}
        self.state = Known()
        self.saved = Known()

    def lacks(self) -> Iterator[tuple[Lack, int, bool]]:
        """In the order of the ops."""
        for at in follow(self.case):
            self.at, op, taken = at, at.op, self.autograd.follow(at)
            if op.takes:
                self.at.skipped = not taken
                self._backward(taken)
            if op.zeroes:
                yield from self._zero_grad()
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

    def _zero_grad(self) -> Iterator[tuple[Lack, int, bool]]:
        """``Optimizer.zero_grad``: all gradients of one dtype and device in one call."""
        if self.at.op.zeroes == "none":
            self.grads.sure -= self.at.optimized
            self.grads.maybe -= self.at.optimized
        elif self.sharded and self.case.optimizer.foreach and not self.all_dtensors:
            for sure, names in ((True, self.grads.sure), (False, self.grads.all)):
                if self._mixes(names & self.at.optimized, on_host=not sure):
                    yield Lack.ONE_KIND_OF_GRADIENT, self.at.index, sure
                    return

    def _mixes(self, names: set[str], *, on_host: bool) -> bool:
        """Whether there are both; a plain tensor of one element is taken for a replicated DTensor.

        ``on_host``: all are on the CPU, and so on one device with those that are offloaded; and
        what may have any dtype has that of the others.
        """
        planned = tensor_dims(self.case, self.found)
        kinds: dict[tuple[Dtype | None, bool], set[bool]] = {}
        for fqn in names:
            owner = self.found.owners[fqn]
            offloaded = (
                not on_host and owner is not UNMANAGED and bool(self.case.wrap[owner].offload)
            )
            key = (held_dtype(self.case, self.found, fqn, self.at.cast), offloaded)
            is_dtensor = owner is not UNMANAGED or fqn in planned
            if is_dtensor or math.prod(self.found.parameters[fqn]) > 1:
                kinds.setdefault(key, set()).add(is_dtensor)
        some = {key: kind for key, kind in kinds.items() if key[0] is not None}
        unknown = kinds.get((None, False), set()) if on_host else set()
        return any(len(kind | unknown) > 1 for kind in (*some.values(), unknown))

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

    def _load(self) -> Iterator[tuple[Lack, int, bool]]:
        op, index = self.at.op, self.at.index
        if self.at.saved == "state_dict":
            self.state = self.saved.copy()
            if op.replaces_parameters:  # the parameters are others now
                self.grads = Known()
            return
        if self.at.saved == "stateful":
            if self.state.all - self.saved.sure:
                yield Lack.SAVED_STATE, index, False
            return
        self._initialise()
        if self.state.all - self.saved.sure:
            yield Lack.SAVED_STATE, index, False
        sets = op.replaces_parameters or self.case.optimizer.scheduler or self.at.saved_with
        if (sets or self.at.saved == "get_state_dict") and self.state.all:
            needed = self.at.optimized - self.at.frozen
            if needed - self.state.sure:
                yield Lack.SAVED_STATE, index, False
