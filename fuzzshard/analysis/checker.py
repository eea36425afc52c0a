"""Whether an op may come next in a schedule, which is said nowhere else.

The strategies ask for each op that they want to add, validation and the reducer for each op of a
schedule that is there. A rule about one op is in its ``misfits``; here is what holds of many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.analysis.autograd import AutogradGraph, reached
from fuzzshard.analysis.check_dtypes import check_dtypes, trained_in_several_dtypes
from fuzzshard.analysis.check_options import group_misfits, no_parameters, option_misfits
from fuzzshard.analysis.dtypes import gradients_are_like_zeros, steps_take_gradients
from fuzzshard.analysis.experts import has_experts
from fuzzshard.analysis.groups import uses_outside_groups, wrapped_modules
from fuzzshard.analysis.in_place import loss_misfits
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.analysis.layouts import check_layouts
from fuzzshard.analysis.optimized import shares
from fuzzshard.analysis.schedule_state import ScheduleState
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block, count_paths
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.names import is_path
from fuzzshard.parts.op import Below, Call, Op, Reasons, Taking
from fuzzshard.parts.ops import sharding
from fuzzshard.parts.ops.set_divide_factor import factors


class Why(NamedTuple):
    """Why an op cannot come next, and what to do about it."""

    problem: str
    remedy: str


class Checker(ScheduleState):
    """A schedule that grows: the state after its ``ops``, and whether another one may come next.

    Its ``case`` has no schedule, and so is the same for all of them.
    """

    def __init__(self, case: Case, found: Inferred) -> None:
        super().__init__(replace(case, schedule=()))
        self.schedule = self.ops = list[Op]()
        self.found = found
        self.unfinished: frozenset[int] = frozenset()
        """The FSDP roots in which a backward that is not the last one has begun something."""
        self._frozen_at_first = frozenset(self.frozen)
        self._wrapped = wrapped_modules(case)
        self.alternatives = count_paths(found.modules)
        """How many paths each block has."""
        self._autograd = AutogradGraph(self.case, found) if case.optimizer.grad_scaler else None
        self._graphs: set[int] = set()
        """The forwards that recorded a graph."""
        self._stale: set[int] = set()
        """Those of them before the last step, which changed what they need."""
        self._callable: dict[tuple[str, Dtype | None], Why | None] = {}

    def why_not(self, op: Op) -> Why | None:
        """Return why ``op`` may not come next; None where it may."""
        why, lacks_reshard = self._judge(op)
        if why is None and lacks_reshard:
            problem = f"{op.tag} is for sharded parameters, and some may be unsharded"
            return Why(problem, 'reshard before it: {"type": "reshard"}')
        return why

    def accepts(self, op: Op) -> bool:
        """Let ``op`` come next if it may, after a reshard where one is asked for; tell whether it
        may.
        """
        why, lacks_reshard = self._judge(op)
        for each in (*[sharding()] * lacks_reshard, op) if why is None else ():
            self.add(each)
        return why is None

    def _judge(self, op: Op) -> tuple[Why | None, bool]:
        """Return why ``op`` may not come next, and whether it asks for a reshard before it."""
        self.ops.append(op)
        why, lacks_reshard = next(self._misfits(op), None), self.lacks_reshard
        self.ops.pop()
        return why and Why(*why), lacks_reshard

    def add(self, op: Op) -> None:
        """Let ``op`` come next, whether it may or not."""
        self.ops.append(op)
        self.advance()

    @property
    @override
    def roots(self) -> tuple[int, ...]:
        return self.model.of_groups

    @override
    def forward(self, call: Call) -> None:
        if self._autograd:
            self._autograd.follow(self)
        if call.grad and self.needs_gradient(call, {*self.found.parameters}, inputs=True):
            self._graphs.add(self.index)
        super().forward(call)

    @override
    def backward(self, takes: Taking) -> None:
        nodes = self._autograd.follow(self) if self._autograd else []
        self.unfinished = self.unfinished_after_backward()
        super().backward(takes)
        if not self.is_partial:
            brought = (fqn for node in reached(nodes) for fqn in node.parameters)
            self.with_gradients |= frozenset(brought) - self.frozen

    @override
    def step(self) -> None:
        self._stale |= self._graphs
        super().step()

    @override
    def rebuild(self, mesh: tuple[int, ...]) -> None:
        super().rebuild(mesh)
        self.unfinished = frozenset()

    def unfinished_after_backward(self) -> frozenset[int]:
        """Return what is :attr:`unfinished` after the next op, which is a backward."""
        through = frozenset[int]().union(*(each.roots for each in self.taken))
        waiting = {self.roots[i] for i in self._groups_of(self.off["is_last_backward"])}
        return (self.unfinished - through) | (through & waiting)

    def _misfits(self, op: Op) -> Reasons:
        """Yield why ``op``, which is the last one, cannot be where it is."""
        if not is_path(op.target):
            yield f"{op.tag} names {op.target!r}, which is no path", "use a path of the model"
        if op.below and not op.below.recurse and op.target not in self._wrapped:
            yield f"{op.tag} names {op.target!r}, which is not wrapped", "wrap it or recurse"
        if any(each.place in self._stale for each in self.forwards_taken):
            yield from self.changed_misfits()
        if self.unfinished and op.uses_gradients and op.zeroes != "none":
            yield (
                f"{op.tag} follows a backward with is_last_backward=False",
                "nobody waits for gradients before the last backward: put one more before it",
            )
        if self.stepped_apart and (op.updates or op.via):
            yield (
                f"{op.tag} follows steps that some ranks have made alone",
                "join() makes the model the same everywhere, and no optimizer: move the op",
            )
        yield from op.misfits(self)

    def changed_misfits(self) -> Reasons:
        """Yield why parameters may not change now, if the last op changes some."""
        if self.pending:
            yield (
                "parameters change between a forward and its backward",
                "autograd refuses parameters that were changed in place: move the op",
            )

    def recomputed_misfits(self, changed: str) -> Reasons:
        """Yield why ``changed``, something that a forward reads, may not change before its
        backward: a checkpoint would compute it again with another value.
        """
        if self.pending and self.case.checkpoints:
            yield (
                f"{changed} changes between a checkpointed forward and its backward",
                "torch.utils.checkpoint must recompute what it computed: move the op",
            )

    def unsaved_misfits(self) -> Reasons:
        """Yield why nothing may be loaded or lost now."""
        if self.saved is None:
            yield "a state is loaded or corrupted before any was saved", "save first"

    def saving_misfits(self) -> Reasons:
        """Yield why nothing may be saved or loaded now."""
        if self.saving:
            yield "a save is not finished yet", "wait for it: wait_for_save"

    def target_misfits(self) -> Reasons:
        """Yield that the last op names no parameters."""
        op = self.ops[-1]
        if not self.parameters_at(op.target):
            yield no_parameters(op.tag, op.target)

    def call_misfits(self, call: Call) -> Reasons:
        """Yield why a forward cannot compute: it must get values that it can take, gather all that
        it uses, and join what goes together.
        """
        key = call.target, self.cast
        if key not in self._callable:
            why = next(self._call_misfits(call.target), None)
            self._callable[key] = why and Why(*why)
        if why := self._callable[key]:
            yield why

    def _call_misfits(self, target: str) -> Reasons:
        if target not in self.found.modules:
            yield f"forward names {target!r}, which is not a module", "use a path of the model"
        if any(value.patches for value in self.found.input_values[target]):
            yield f"a forward of {target!r} would need patches as input", "call the root"
        called = self.found.modules[target]
        passes = isinstance(called, Block) and called.passing == "dataclass"
        if passes and self.case.inputs.on_host:
            # they do in tuples and dicts (``_recursive_to`` in torch/distributed/utils.py)
            yield (
                "engines do not move tensors inside a dataclass",
                "pass the inputs another way",
            )
        tied = {tie.source for tie in self.case.ties}
        for path, fqn in uses_outside_groups(self.case, self.found, target):
            if target == "" and fqn in tied and self.case.root_is_wrapped:
                continue  # torch refuses parameters that are tied across groups, with its own text
            yield (
                f"forward of {target!r} uses {fqn!r} in {path!r}, outside the group that manages "
                "it",
                f"wrap {target or path!r} itself",
            )
        yield from loss_misfits(self.case, target)
        try:
            check_layouts(self.case, self.found, target)
            check_dtypes(self.case, self.found, target, self.cast)
        except InvalidCase as error:
            yield error.problem, error.remedy

    def mesh_misfits(self, axes: tuple[int, ...]) -> Reasons:
        """Yield why no model of this case can be built on these data-parallel axes."""
        return option_misfits(replace(self.case, wrap=self.wrap).on(axes), self.found)

    def telling_misfits(self, word: str, below: Below, *, on: bool) -> Reasons:
        """Yield why groups cannot be told a word of ``communication``, or its opposite."""
        wrap = self.told(word, True, below)
        yield from group_misfits(replace(self.case, wrap=wrap), self.found)
        divided = factors(self.ops) or any(has_experts(self.case, each) for each in self.case.wrap)
        if word == "sum" and not on and divided:
            yield (
                "sums are no longer forced on groups that have divide factors",
                "gloo cannot multiply while it adds: remove one of the two",
            )

    def scaling_misfits(self) -> Reasons:
        """Yield why a ``GradScaler`` may have no gradients to unscale now, if there is one.

        It wants some ("No inf checks were recorded for this optimizer", torch/amp/grad_scaler.py).
        """
        optimizer = self.case.optimizer
        ranks_differ = any(op.ranks != "all" for op in self.ops)
        lacks = self.is_partial or ranks_differ or not all(shares(optimizer, self.with_gradients))
        if optimizer.grad_scaler and lacks:
            yield "a step of a GradScaler may have no gradients", "put a backward before it"

    @property
    def may_fill_gradients(self) -> bool:
        """Whether an engine may make gradients of zeros for parameters that are trained now and
        have none.
        """
        lacking = self.found.parameters.keys() - self.frozen - self.with_gradients
        return bool(lacking) and any(spec_of(name).has_units for name in self.case.engines)

    def trains_several_dtypes(self, targets: Iterable[str]) -> Reasons:
        """Yield for which group more than one dtype is trained once what is at these is."""
        frozen = self._frozen_at_first.difference(*map(self.parameters_at, targets))
        return trained_in_several_dtypes(self.case, self.found, frozen)

    @property
    def changes_in_place(self) -> bool:
        """Whether some tensor is changed in place."""
        return self.found.adds_in_place or LOSSES[self.case.loss].changes_outputs

    @property
    def takes_gradients(self) -> bool:
        """Whether steps take gradients of the dtypes that were set, those of the next op too."""
        return steps_take_gradients(self._so_far, self.found)

    @property
    def gradients_are_like_zeros(self) -> bool:
        """Whether gradients have the dtypes of zeros like the parameters."""
        return gradients_are_like_zeros(self._so_far, self.found)

    @property
    def saves_own_buffers(self) -> bool:
        """Whether every rank has buffers of its own in its state dict: of its own inputs, or
        behind masks of its own.
        """
        leaves = self.found.leaves
        saved = any(not leaves[path].hides_buffers for path in self.found.updated)
        dropped = any(leaf.drops for leaf in leaves.values())
        return saved and (dropped or not self.case.inputs.same_on_ranks)

    @property
    def _so_far(self) -> Case:
        """The case with the ops that say something of gradients' dtypes."""
        said = tuple(op for op in self.ops if op.retypes or op.casts_to)
        return replace(self.case, schedule=said)


def schedule_misfits(case: Case, found: Inferred) -> Iterator[Why]:
    """Yield what is wrong with the schedule of a case, op by op."""
    at = Checker(case, found)
    for op in case.schedule:
        if why := at.why_not(op):
            yield why
        at.add(op)
    if not at.has_run:
        yield Why("the schedule has no forward", "add one")
