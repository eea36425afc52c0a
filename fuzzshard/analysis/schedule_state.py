"""Where a training run stands at each op of a schedule, as far as the schedule alone says.

:func:`follow` is what everything that interprets a schedule goes by: validation, the trainer, the
oracles that predict and the scripts.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from typing import NamedTuple

from typing_extensions import override

from fuzzshard.analysis.flow import flow_of
from fuzzshard.analysis.groups import Roots, calls_of, modules_named, wrapped_modules
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.sync_flags import UNMANAGED, SyncFlags
from fuzzshard.case.case import Case
from fuzzshard.case.paths import is_within, is_within_any
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.engines import specs
from fuzzshard.parts.moments import Moment
from fuzzshard.parts.op import (
    Below,
    Call,
    Op,
    StateOption,
    Switch,
    Taking,
    Via,
    Zeroed,
    names_rank,
)
from fuzzshard.parts.options.wrap_group import AfterForward, WrapGroup


class Pending(NamedTuple):
    """A forward without a backward yet: its place in the schedule, the modules that it called.

    ``synced``: whether engines with one switch for everything synchronised gradients then.
    ``roots`` are the FSDP roots that its backward goes through for certain.
    """

    place: int
    call: Call
    modules: frozenset[str]
    synced: bool
    roots: frozenset[int]


class ScheduleState:
    """The state before the op at ``index``, on one rank; :meth:`advance` applies that op. ``case``
    is on the mesh that there is then.

    A backward that is ``skipped`` had nothing to differentiate and changes nothing but the pending
    forwards.
    """

    def __init__(self, case: Case, rank: int = 0) -> None:
        self.case = case
        self.schedule: Sequence[Op] = case.schedule
        self.rank = rank
        self.index = 0
        self.skipped = False
        """Whoever follows the schedule may say so of the op at hand."""
        self.pending: list[Pending] = []
        self.frozen: set[str] = set()
        """The parameters that do not require a gradient."""
        self.optimized = self._made_of()
        """The parameters that the optimizer has, frozen ones included."""
        self.added = False
        """Whether the optimizer got some that it was made without."""
        self.stepped: set[str] = set()
        """The parameters that are changed within backwards that bring them a gradient."""
        self.hooked: set[str] = set()
        """The parameters that have a hook of the user on what they have accumulated."""
        self.averaged = False
        """Whether there was a running average."""
        self.engines_train_more = False
        """Whether engines train, or have trained, what the reference keeps frozen."""
        self.paths: dict[str, int] = {}
        """The path of every block with alternatives; 0 where it is not named."""
        self.cast: Dtype | None = None
        """The dtype that everything was cast to last, if it was."""
        self.training = True
        self.grad_enabled = True
        self.loaded = False
        """Whether nothing ran since a state was loaded."""
        self.saved: Via | None = None
        """How the state was saved last, if there is one to load."""
        self.saved_with: tuple[StateOption, ...] = ()
        """The options that this was asked for with."""
        self.saved_frozen: Set[str] = frozenset()
        """What was frozen then."""
        self.saving = False
        """Whether that may still be being written."""
        self.flags = SyncFlags(case)
        self.modules = wrapped_modules(case) or frozenset(("",))
        self.off: dict[str, frozenset[str]] = defaultdict(frozenset)
        """By flag, the wrapped modules that have it off."""
        self.has_run = False
        """Whether there was a forward."""
        self.model = Roots(case)
        """The FSDP roots of the model that there is, as far as its forwards have run."""
        self.initialised = False
        """Whether some of that model's groups are, by a forward that has begun or an unshard."""
        self.steps = self.backwards = 0
        """Steps, and backwards since the last one."""
        self.zeroed = True
        """Whether gradients were zeroed since the last step."""
        self.unscaled = False
        """Whether the scale is out of the gradients that there are, or may be: a step takes it
        out, but one of a fused optimizer that is skipped does not.
        """
        self.unsynced = False
        """Whether the last backward left some gradients unsynchronised."""
        self.was_reduced_partly = False
        """Whether it reduced gradients over one axis of the mesh only, somewhere."""
        self.stepped_partial = False
        """Whether a step since the last load took gradients that were not reduced over all ranks.
        """
        self.stepped_apart = False
        """Whether some ranks have made more steps than others, which optimizers keep count of."""
        self.forwarded = False
        """Whether there was a forward since the last backward."""
        self.has_gradients = False
        """Whether backwards have left gradients that nothing has removed since."""
        self.with_gradients: frozenset[str] = frozenset()
        """The parameters that have one for certain, reduced over all ranks; a ``Checker`` alone
        knows some, where losses are scaled.
        """
        self.unsharded: frozenset[int] = frozenset()
        """The groups of ``fully_shard`` for which nothing promises that their parameters are
        sharded, and that no all-gather of them is under way.
        """
        self._ahead = [self._groups_of(group.prefetched("forward")) for group in case.wrap]
        self.wrap = case.wrap
        """The groups, with what they are told now."""
        self.reshards: dict[int, bool] = {}
        """By group, the ``reshard_after_forward`` that was set during training."""
        for freeze in case.freezes:
            self.set_requires_grad(freeze.target, False)

    def after_forward(self, group: int) -> AfterForward:
        """Return how a group is to be after forward."""
        shard = self.case.mesh.shard
        if group in self.reshards:
            return AfterForward(not self.reshards[group], False, shard)
        return self.case.wrap[group].after_forward(shard)

    @property
    def op(self) -> Op:
        """The op that comes next."""
        return self.schedule[self.index]

    @property
    def moments(self) -> frozenset[Moment]:
        """When in a training run this is, in all ways that apply."""
        now: dict[Moment, object] = {
            "before_first_forward": not self.has_run,
            "forward_to_backward": self.pending,
            "after_step": self.has_run and self.steps and not (self.backwards or self.pending),
            "in_evaluation": not self.training,
            "after_load": self.loaded,
            "under_no_grad": not self.grad_enabled,
        }
        if self.backwards and not self.pending and (moment := self._moment_after_backward):
            now[moment] = True
        return frozenset(moment for moment, holds in now.items() if holds)

    @property
    def _moment_after_backward(self) -> Moment | None:
        """By what comes first from here on: a step, or a forward that will have a backward."""
        for op in self.schedule[self.index :]:
            if op.updates or (op.begins and op.begins.grad):
                return "backward_to_step" if op.updates else "between_microbatches"
        return None

    @property
    def is_partial(self) -> bool:
        """Whether the last backward left some gradients to reduce, over some axis of the mesh."""
        return self.unsynced or self.was_reduced_partly

    @property
    def synced(self) -> bool:
        """Whether engines with one switch for everything synchronise gradients now."""
        return self.flags.synced(UNMANAGED)

    @property
    def lacks_reshard(self) -> bool:
        """Whether the next op is for sharded parameters, and some may not be.

        "Call :meth:`reshard` on each FSDP module on every rank before updating its sharded
        parameters" (``FSDPModule.set_reshard_after_backward``).
        """
        if not (self.op.wants_sharded and self.unsharded):
            return False
        return any(
            spec.applies_groups or spec.shards_stages(self.case)
            for spec in specs(self.case.engines)
        )

    @property
    def forwards_taken(self) -> list[Pending]:
        """The pending forwards that the next op is the backward of."""
        return self.pending[self.op.takes.places] if self.op.takes else []

    @property
    def taken(self) -> list[Pending]:
        """The same, each with the outputs of which that takes the loss."""
        outputs = self.op.takes and self.op.takes.outputs
        if outputs is None:
            return self.forwards_taken
        return [self._of_outputs(each, outputs) for each in self.forwards_taken]

    def _of_outputs(self, forward: Pending, outputs: tuple[int, ...]) -> Pending:
        call = forward.call._replace(outputs=outputs)
        return forward._replace(call=call, roots=self._roots_behind(call, forward.modules))

    def calls_of(self, target: str) -> frozenset[str]:
        """Return the modules that a forward of ``target`` would call now."""
        return calls_of(self.case, target, self.paths)

    def late_change(self) -> Iterator[str]:
        """Yield the feature of an op that changes parameters now, or what the optimizer has."""
        if self.forwarded or self.pending:
            yield "schedule:changed_after_forward"

    def is_managed(self, fqn: str) -> bool:
        """Return whether a wrap group manages a parameter."""
        return inferred(self.case).owners[fqn] is not UNMANAGED

    def parameters_at(self, target: str) -> set[str]:
        """Return the parameters at and below a module, or one of that name."""
        return {fqn for fqn in inferred(self.case).parameters if is_within(fqn, target)}

    def are_frozen_at_construction(self, target: str) -> bool:
        """Return whether a parameter at ``target`` is frozen before the model is wrapped."""
        frozen = [freeze.target for freeze in self.case.freezes if not freeze.after_wrap]
        return any(is_within_any(fqn, frozen) for fqn in self.parameters_at(target))

    def advance(self, *, skipped: bool = False) -> None:
        """Apply the op, if it runs on this rank."""
        self.skipped |= skipped
        if names_rank(self.op.ranks, self.rank):
            self.op.follow(self)
        self.index += 1
        self.skipped = False

    # What ops do, which tell it in ``Op.follow``:

    def begin(self, call: Call) -> None:
        """Begin a forward, whether it comes to its end or not."""
        self.model.run(self.calls_of(call.target))
        self._run_groups(self.calls_of(call.target))
        self.loaded, self.initialised = False, True

    def forward(self, call: Call) -> None:
        """Run a whole forward."""
        self.begin(call)
        self.has_run = self.forwarded = True
        if call.grad:
            modules = self.calls_of(call.target)
            roots = self._roots_behind(call, modules)
            self.pending.append(Pending(self.index, call, modules, self.synced, roots))

    def abort(self, call: Call) -> None:
        """Run an iteration that an exception ends, and recover."""
        self.begin(call)
        self.shard(Below())
        self.with_gradients = frozenset()
        self.has_gradients = self.unsynced = self.was_reduced_partly = False

    def backward(self, takes: Taking) -> None:
        """Run the backward of pending losses."""
        taken = self.taken
        if not takes.retains:
            places = {each.place for each in taken}
            self.pending = [each for each in self.pending if each.place not in places]
        for each in taken if not self.skipped else ():
            self._reshard_after_backward(each)
        self.unsynced = not self.synced or bool(self.off["requires_gradient_sync"])
        partly = bool(self.off["requires_all_reduce"]) and bool(self.case.wrap)
        self.was_reduced_partly = partly and self.case.mesh.replicate is not None
        self.has_gradients, self.forwarded = True, False
        self.backwards += 1

    def step(self) -> None:
        """Update what the optimizer has."""
        self.steps, self.backwards = self.steps + 1, 0
        self.zeroed, self.unscaled = False, self.case.optimizer.grad_scaler is not None
        self.stepped_partial |= self.is_partial

    def zero(self, how: Zeroed) -> None:
        """Zero the gradients of what the optimizer has."""
        self.zeroed, self.unscaled = True, False
        if how == "none":
            self.has_gradients &= bool(self.case.optimizer.left_out)
            self.with_gradients = frozenset()

    def set_flag(self, switch: Switch) -> None:
        """Set a flag of wrapped modules."""
        self.flags.set(switch)
        chosen = frozenset(modules_named(self.case, self.modules, switch.below))
        before = self.off[switch.flag]
        self.off[switch.flag] = before - chosen if switch.value else before | chosen
        if switch.flag == "reshard_after_forward":
            self.reshards |= dict.fromkeys(self._groups_of(chosen), switch.value)

    def tell(self, word: str, on: bool, below: Below) -> None:
        """Tell groups a word of ``communication``, or the opposite."""
        self.wrap = self.told(word, on, below)

    def told(self, word: str, on: bool, below: Below) -> tuple[WrapGroup, ...]:
        """Return the groups as they are once some are told so."""
        named = self._groups_named(below)
        return tuple(
            group.telling(word, on=on) if index in named else group
            for index, group in enumerate(self.wrap)
        )

    def set_requires_grad(self, target: str, value: bool) -> None:
        """Freeze what is at ``target``, or make it trainable."""
        names = self.parameters_at(target)
        self.frozen = self.frozen - names if value else self.frozen | names

    def gather(self, below: Below, *, waits: bool) -> None:
        """Unshard modules, or begin to, unless it ``waits``."""
        self.unsharded |= self._groups_named(below)
        self.initialised = True

    def shard(self, below: Below) -> None:
        """Reshard modules."""
        self.unsharded -= self._groups_named(below)

    def cast_to(self, dtype: Dtype) -> None:
        """Cast everything, and make the optimizer anew."""
        self.cast, self.saved = dtype, None
        self.renew()
        self.shard(Below())
        self.optimized = self._made_of()

    def rebuild(self, mesh: tuple[int, ...]) -> None:
        """Build model and optimizer anew, on these axes of the mesh if there are any."""
        self.renew()
        self.shard(Below())
        self.optimized = self._made_of()
        self.case = self.flags.case = self.case.on(mesh)
        self.model, self.initialised = Roots(self.case), False

    def renew(self) -> None:
        """Make parameters other tensors, or of another dtype."""
        self.unscaled, self.with_gradients = False, frozenset()

    def _made_of(self) -> set[str]:
        """Return what an optimizer is made of."""
        left_out = self.case.optimizer.left_out
        every = inferred(self.case).parameters
        return {fqn for fqn in every if not is_within_any(fqn, left_out)}

    def _groups_of(self, modules: Collection[str]) -> frozenset[int]:
        """Return the groups that have one of ``modules``."""
        return frozenset(
            i
            for i, group in enumerate(self.case.wrap)
            if not set(group.modules).isdisjoint(modules)
        )

    def _groups_named(self, below: Below) -> frozenset[int]:
        return self._groups_of(modules_named(self.case, self.modules, below))

    def _run_groups(self, called: frozenset[str]) -> None:
        """A forward shards the groups that say so, once all of their modules ran.

        "The registered parameters are the sharded parameters if ``True``" (docstring of
        ``fully_shard``). What is gathered ahead may not be used.
        """
        running = self._groups_of(called)
        for i in running:
            group, (whole, whole_as_root, ranks) = self.case.wrap[i], self.after_forward(i)
            keeps = whole or (whole_as_root and self.roots[i] == i)
            shards = (
                not keeps and ranks == self.case.mesh.shard and called.issuperset(group.modules)
            )
            self.unsharded = self.unsharded - {i} if shards else self.unsharded | {i}
        self.unsharded = self.unsharded.union(*(self._ahead[i] for i in running))

    def _reshard_after_backward(self, forward: Pending) -> None:
        """A backward reshards all groups of the FSDP roots that it goes through, and of no
        others, unless a flag keeps them. It gathers a group of another root, too, where it goes
        through it only for a gradient of its inputs.
        """
        kept = self._groups_of(self.off["reshard_after_backward"])
        behind = {i for i, root in enumerate(self.roots) if root in forward.roots}
        gathered = behind | self._groups_of(forward.modules)
        self.unsharded = (self.unsharded - (behind - kept)) | (gathered & kept)

    def _roots_behind(self, call: Call, modules: frozenset[str]) -> frozenset[int]:
        """Return the FSDP roots with a parameter that the loss of a forward has a gradient for.

        A wrapped root that is called has hooks on all that a loss can be made of.
        """
        owners = inferred(self.case).owners
        managed = {fqn for fqn, owner in owners.items() if owner is not UNMANAGED}

        def is_behind(root: int) -> bool:
            if "" in self.case.wrap[root].modules:
                hooked = managed if call.target else owners.keys()
                return self.needs_gradient(call, hooked, inputs=True)
            within = {i for i, other in enumerate(self.roots) if other == root}
            return self.needs_gradient(call, {fqn for fqn, i in owners.items() if i in within})

        return frozenset(filter(is_behind, {self.roots[i] for i in self._groups_of(modules)}))

    def needs_gradient(self, call: Call, parameters: Set[str], *, inputs: bool = False) -> bool:
        """Return whether the loss of a forward depends on one of ``parameters`` that is not
        frozen; or on an input of the root that requires a gradient, where ``inputs`` count.
        """
        trained = parameters - self.frozen
        outputs = flow_of(self.case).outputs(call.target, trained, self.paths, inputs=inputs)
        return any(outputs[i] for i in call.used(len(outputs)))

    @property
    def roots(self) -> tuple[int, ...]:
        """The FSDP root of each wrap group."""
        return self._roots_by_op[self.index]

    @functools.cached_property
    def _roots_by_op(self) -> tuple[tuple[int, ...], ...]:
        return roots_by_op(self.case)


def follow(case: Case, rank: int = 0, *, skipped: Collection[int] = ()) -> Iterator[ScheduleState]:
    """Yield the state before every op. ``skipped`` are backwards, by the index of their ops."""
    at = ScheduleState(case, rank)
    for index in range(len(case.schedule)):
        yield at
        at.advance(skipped=at.skipped or index in skipped)


def first(case: Case, holds: Callable[[ScheduleState], object]) -> int:
    """Return the first op after which that holds of the state; else the end."""
    at = ScheduleState(case)
    for index in range(len(case.schedule)):
        at.advance()
        if holds(at):
            return index
    return len(case.schedule)


def first_step(case: Case) -> int:
    """Return the first step of an optimizer, maybe within a backward; else the end. From there on
    rounding feeds on itself.
    """
    return first(case, lambda at: at.steps or at.stepped)


def root_groups(case: Case) -> tuple[int, ...]:
    """Return the FSDP roots of the wrap groups in the model that a case begins with."""
    return roots_by_op(case)[0]


@functools.lru_cache(maxsize=64)
def roots_by_op(case: Case) -> tuple[tuple[int, ...], ...]:
    """Return by op, for each wrap group the group that is its FSDP root in the model that is
    there: the outermost one of those that run in the first forward of it ("determine which state
    is the root ... by the 1st state to run forward", ``FSDPState._lazy_init``). Where it never
    runs, the outermost group around it. A model that was built anew may run in another order.
    """
    found: list[tuple[int, ...]] = []
    at = _Models(case, rank=1)
    for index in range(len(case.schedule)):
        model = at.model
        at.advance()
        if at.model is not model:
            found += [model.of_groups] * (index + 1 - len(found))
    return (*found, *[at.model.of_groups] * (len(case.schedule) + 1 - len(found)))


class _Models(ScheduleState):
    """What forwards run in each model; every op runs on rank 1."""

    @property
    @override
    def roots(self) -> tuple[int, ...]:
        return self.model.of_groups

    @override
    def forward(self, call: Call) -> None:
        self.begin(call)

    @override
    def backward(self, takes: Taking) -> None:
        pass


def ranks_differ(case: Case) -> bool:
    """Return whether some op runs on some ranks only, so that ranks may train different models
    from there on.

    Nothing is comparable then, neither with the reference, whose gradients have no common mean,
    nor between ranks; such a case is judged by its expectations alone.
    """
    return any(op.ranks != "all" for op in case.schedule)


@functools.lru_cache(maxsize=64)  # asked for every tensor that differs
def engines_train_more_from(case: Case) -> int:
    """Return the first op from which engines train a parameter that the reference keeps frozen;
    else the end.
    """
    return first(case, lambda at: at.engines_train_more)


def ops_that_run(case: Case, engine: str) -> range:
    """Return the places in the schedule of the ops that an engine gets through; an expected error
    ends its run.
    """
    errors = (e.op for e in case.expect if e.kind == "error" and e.engine == engine)
    return range(min(errors, default=len(case.schedule)))
