"""When the reducer of ``DistributedDataParallel`` raises: what follows from a case alone.

The reducer (torch/csrc/distributed/c10d/reducer.cpp) expects a gradient of every parameter that it was
constructed with, once between a forward and the next. A forward in training with synchronisation prepares it:
with ``find_unused_parameters`` the parameters that the outputs do not depend on are marked ready with the
first gradient that comes.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterator

from fuzzshard.case.arrivals import ignored_parameters
from fuzzshard.case.autograd import Node, Tape, Unwatched, Value, reached
from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.paths import is_within
from fuzzshard.case.progress import Progress
from fuzzshard.case.schedule import Backward, CorruptState, Forward, Op, SetFlag, SetMode
from fuzzshard.case.sync_flags import UNMANAGED, SyncFlags


class Complaint(enum.Enum):
    """What the reducer, or the constructor that makes it, says."""

    NOTHING_TO_REDUCE = "no parameter requires a gradient"
    READY_TWICE = "a parameter is marked ready twice"
    NOTHING_TO_FINALIZE = "finalize_backward() comes where nothing is reduced"


@dataclasses.dataclass(frozen=True)
class ReducerOptions:
    """What the reducer is constructed with. ``built_by_forward``: ``replicate`` does so in a forward.

    With ``static_graph`` it finds out in the first iteration what every backward comes to, and a case whose
    graph changes is not run. ``ignored`` are parameters that it does not get.
    """

    built_by_forward: bool = False
    find_unused_parameters: bool = True
    static_graph: bool = False
    manual_finalization: bool = False
    ignored: frozenset[str] = frozenset()


def reducer_options(case: Case, engine: str) -> ReducerOptions:
    """What an engine constructs the reducer of a case with."""
    by_replicate = engine == "replicate"
    return ReducerOptions(
        built_by_forward=by_replicate,
        find_unused_parameters=case.ddp.find_unused_parameters,
        static_graph=case.ddp.static_graph,
        manual_finalization=case.ddp.manual_finalization and not by_replicate,
        ignored=ignored_parameters(case, by_replicate=by_replicate),
    )


@functools.lru_cache(maxsize=8)
def complaint(case: Case, options: ReducerOptions) -> tuple[Complaint, int] | None:
    """The first complaint and the op that raises it (-1: construction); None where there is none."""
    return next(_Reducer(case, options).complaints(), None)


class _Reducer:
    """Follows a schedule. ``parameters`` are those that the reducer has; None before it is constructed."""

    def __init__(self, case: Case, options: ReducerOptions) -> None:
        self.case, self.options = case, options
        self.found = facts(case)
        self.tape = Tape(case, self.found, Unwatched())
        self.progress = Progress(case)
        self.flags = SyncFlags(case)
        self.training = True
        self.losses: dict[int, list[Node]] = {}
        self._forget()

    def _forget(self) -> None:
        self.parameters: frozenset[str] | None = None
        self.expects = False
        self.unused: frozenset[str] = frozenset()
        self.ready: set[str] = set()

    def complaints(self) -> Iterator[tuple[Complaint, int]]:
        """Every complaint in order; what comes after the first is what a reducer would say that went on."""
        if not self.options.built_by_forward:
            yield from self._construct(-1, self._frozen_at_construction())
        for index, op in enumerate(self.case.schedule):
            yield from self._run(index, op)

    def _run(self, index: int, op: Op) -> Iterator[tuple[Complaint, int]]:
        skipped = False
        match op:  # a forward of a submodule does not come to DDP
            case Forward(target=""):
                if self.parameters is None:
                    yield from self._construct(index, frozenset(self.progress.frozen))
                self._forward(index, op)
            case Backward():
                taken = [node for i, _, _ in self.progress.taken_by(op) for node in self.losses.pop(i)]
                skipped = not taken
                yield from self._backward(index, taken)
            case SetFlag():
                self.flags.set(op)
            case SetMode():
                self.training = op.train
            case CorruptState(how="rebuild"):
                self._forget()
                if not self.options.built_by_forward:
                    yield from self._construct(index, self._frozen_at_construction())
            case _:
                pass
        self.progress.advance(skipped=skipped)

    def _frozen_at_construction(self) -> frozenset[str]:
        targets = [freeze.target for freeze in self.case.freezes if not freeze.after_wrap]
        return frozenset(f for f in self.found.parameters if any(is_within(f, t) for t in targets))

    def _construct(self, index: int, frozen: frozenset[str]) -> Iterator[tuple[Complaint, int]]:
        self.parameters = frozenset(self.found.parameters) - frozen - self.options.ignored
        if not self.parameters:
            yield Complaint.NOTHING_TO_REDUCE, index

    def _forward(self, index: int, op: Forward) -> None:
        progress = self.progress
        outputs = self.tape.forward(
            op.target, grad=op.grad, paths=progress.paths, frozen=progress.frozen, training=self.training
        )
        if not op.grad:
            return
        made = [node for node in outputs if node is not None and not _is_input(node)]
        if self.flags.synced(UNMANAGED):
            self._prepare(made)
        if self.options.find_unused_parameters and made:
            outputs = self._through_sink(outputs)
        used = outputs if op.outputs is None else [outputs[i] for i in op.outputs]
        self.losses[index] = [node for node in used if node is not None]

    def _prepare(self, outputs: list[Node]) -> None:
        """``prepare_for_backward``."""
        self.expects = True
        self.ready.clear()
        self.unused = frozenset()
        if self.options.find_unused_parameters:
            self.unused = (self.parameters or frozenset()) - _leaves(outputs)

    def _through_sink(self, outputs: list[Value]) -> list[Value]:
        """``_DDPSink`` (torch/nn/parallel/distributed.py): a gradient of one output goes on to them all."""
        sink = self.tape.node(outputs)
        return [node if node is None or _is_input(node) else sink for node in outputs]

    def _backward(self, index: int, losses: list[Node]) -> Iterator[tuple[Complaint, int]]:
        parameters = self.parameters or frozenset()
        came = _leaves(losses) & parameters
        if self.options.static_graph:
            return
        if not came or not self.expects:
            if losses and self.options.manual_finalization and self.flags.synced(UNMANAGED):
                yield Complaint.NOTHING_TO_FINALIZE, index
            return
        if came & (self.unused | self.ready):
            yield Complaint.READY_TWICE, index
        self.ready |= came | self.unused
        self.expects = self.ready != parameters


def _leaves(nodes: list[Node]) -> frozenset[str]:
    """The parameters that get gradients from ``nodes``."""
    return frozenset().union(*(node.parameters for node in reached(nodes)))


def _is_input(node: Node) -> bool:
    """Whether it stands for an input of the root, which no function has made."""
    return not node.inputs and not node.parameters
