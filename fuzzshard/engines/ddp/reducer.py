"""When the reducer of ``DistributedDataParallel`` raises: what follows from a case alone.

The reducer (torch/csrc/distributed/c10d/reducer.cpp) expects a gradient of every parameter that it
was constructed with, once between a forward and the next. A forward in training with
synchronisation prepares it: where it ``marks_unused`` ones, the parameters that the outputs do not
depend on are marked ready with the first gradient that comes.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterator

from fuzzshard.analysis.arrivals import ignored_parameters
from fuzzshard.analysis.autograd import AutogradGraph, Node, Value, reached, taken_nodes
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.schedule_state import ScheduleState, follow
from fuzzshard.case.case import Case
from fuzzshard.case.paths import is_within_any
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.op import Call


class Complaint(enum.Enum):
    """What the reducer, or the constructor that makes it, says."""

    NOTHING_TO_REDUCE = "no parameter requires a gradient"
    READY_TWICE = "a parameter is marked ready twice"
    NOTHING_TO_FINALIZE = "finalize_backward() comes where nothing is reduced"


@dataclasses.dataclass(frozen=True)
class ReducerOptions:
    """What the reducer is constructed with. ``built_by_forward``: ``replicate`` does so in a
    forward.

    One that ``learns_graph`` finds out in the first iteration what every backward comes to, and a
    case whose graph changes is not run. ``ignored`` are parameters that it does not get.
    """

    built_by_forward: bool = False
    marks_unused: bool = True
    learns_graph: bool = False
    finalized_by_user: bool = False
    ignored: frozenset[str] = frozenset()


def reducer_options(case: Case, engine: str) -> ReducerOptions:
    """Return what an engine constructs the reducer of a case with."""
    by_replicate = not spec_of(engine).wrapper
    return ReducerOptions(
        built_by_forward=by_replicate,
        marks_unused=case.ddp.find_unused_parameters,
        learns_graph=case.ddp.static_graph,
        finalized_by_user=case.ddp.manual_finalization and not by_replicate,
        ignored=ignored_parameters(case, by_replicate=by_replicate),
    )


@functools.lru_cache(maxsize=8)
def complaint(case: Case, options: ReducerOptions) -> tuple[Complaint, int] | None:
    """Return the first complaint and the op that raises it (-1: construction); None where there is
    none.
    """
    return next(_Reducer(case, options).complaints(), None)


class _Reducer:
    """Follows a schedule. ``parameters`` are those that the reducer has; None before it is
    constructed.
    """

    def __init__(self, case: Case, options: ReducerOptions) -> None:
        self.case, self.options = case, options
        self.found = inferred(case)
        self.autograd = AutogradGraph(case, self.found)
        self.at = ScheduleState(case)
        self.outputs: dict[int, tuple[Value, ...]] = {}
        self._forget()

    def _forget(self) -> None:
        self.parameters: frozenset[str] | None = None
        self.expects = False
        self.unused: frozenset[str] = frozenset()
        self.ready: set[str] = set()
        self.learned = False
        """Whether there was an iteration; the first one is finalized in any case."""

    def complaints(self) -> Iterator[tuple[Complaint, int]]:
        """Yield every complaint in order; what comes after the first is what a reducer would say
        that went on.
        """
        if not self.options.built_by_forward:
            yield from self._construct(-1, self._frozen_at_construction())
        for at in follow(self.case):
            self.at, op, index = at, at.op, at.index
            if op.call and not op.call.target:  # one of a submodule does not come to DDP
                if self.parameters is None:
                    yield from self._construct(index, frozenset(self.at.frozen))
                self._forward(op.call)
            if op.takes:
                taken = taken_nodes(self.at, self.outputs)
                self.at.skipped = not taken
                yield from self._backward(taken)
            if op.rebuilds is not None:
                self._forget()
                if not self.options.built_by_forward:
                    yield from self._construct(index, self._frozen_at_construction())

    def _frozen_at_construction(self) -> frozenset[str]:
        targets = [freeze.target for freeze in self.case.freezes if not freeze.after_wrap]
        return frozenset(f for f in self.found.parameters if is_within_any(f, targets))

    def _construct(self, index: int, frozen: frozenset[str]) -> Iterator[tuple[Complaint, int]]:
        self.parameters = frozenset(self.found.parameters) - frozen - self.options.ignored
        if not self.parameters:
            yield Complaint.NOTHING_TO_REDUCE, index

    def _forward(self, call: Call) -> None:
        at = self.at
        outputs = self.autograd.forward(
            "", grad=call.grad, paths=at.paths, frozen=at.frozen, training=at.training
        )
        if not call.grad:
            return
        made = [node for node in outputs if node is not None and not _is_input(node)]
        if at.synced:
            self._prepare(made)
        if self.options.marks_unused and made:
            outputs = self._through_sink(outputs)
        self.outputs[at.index] = outputs

    def _prepare(self, outputs: list[Node]) -> None:
        """``prepare_for_backward``."""
        self.expects = True
        self.ready.clear()
        self.unused = frozenset()
        if self.options.marks_unused:
            self.unused = (self.parameters or frozenset()) - _leaves(outputs)

    def _through_sink(self, outputs: tuple[Value, ...]) -> tuple[Value, ...]:
        """``_DDPSink`` (torch/nn/parallel/distributed.py): a gradient of one output goes on to
        them all.
        """
        sink = self.autograd.made(outputs)
        kept = (node is None or _is_input(node) for node in outputs)
        return tuple(node if keeps else sink for node, keeps in zip(outputs, kept, strict=True))

    def _backward(self, losses: list[Node]) -> Iterator[tuple[Complaint, int]]:
        parameters = self.parameters or frozenset()
        came = _leaves(losses) & parameters
        if self.options.learns_graph:
            if self.learned and losses and not came and self.options.finalized_by_user:
                yield Complaint.NOTHING_TO_FINALIZE, self.at.index
            self.learned = True
            return
        if not came or not self.expects:
            if losses and self.options.finalized_by_user and self.at.synced:
                yield Complaint.NOTHING_TO_FINALIZE, self.at.index
            return
        if came & (self.unused | self.ready):
            yield Complaint.READY_TWICE, self.at.index
        self.ready |= came | self.unused
        self.expects = self.ready != parameters


def _leaves(nodes: list[Node]) -> frozenset[str]:
    """Return the parameters that get gradients from ``nodes``."""
    return frozenset().union(*(node.parameters for node in reached(nodes)))


def _is_input(node: Node) -> bool:
    """Return whether it stands for an input of the root, which no function has made."""
    return not node.inputs and not node.parameters
