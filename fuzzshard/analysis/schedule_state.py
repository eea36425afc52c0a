"""Where a training run stands at each op of a schedule, as far as the schedule alone says.

:func:`follow` is what everything that interprets a schedule goes by: validation, the trainer, the
oracles that predict and the scripts.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from typing import NamedTuple

from fuzzshard.analysis.flow import flow_of
from fuzzshard.analysis.groups import calls_of, modules_named, roots_by_op, wrapped_modules
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.sync_flags import UNMANAGED, SyncFlags
from fuzzshard.case.case import Case
from fuzzshard.case.paths import is_within, is_within_any
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.engines import specs
from fuzzshard.parts.moments import Moment
from fuzzshard.parts.op import Below, Call, Op, Switch, Via
from fuzzshard.parts.options.wrap_group import AfterForward


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
        self.stepped: set[str] = set()
        """The parameters that are changed within backwards that bring them a gradient."""
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
        self.saving = False
        """Whether that may still be being written."""
        self.flags = SyncFlags(case)
        self.modules = wrapped_modules(case) or frozenset(("",))
        self.off: dict[str, frozenset[str]] = defaultdict(frozenset)
        """By flag, the wrapped modules that have it off."""
        self.has_run = False
        """Whether there was a forward."""
        self.steps = self.backwards = 0
        """Steps, and backwards since the last one."""
        self.zeroed = True
        """Whether gradients were zeroed since the last step."""
        self.unsynced = False
        """Whether the last backward left some gradients unsynchronised."""
        self.forwarded = False
        """Whether there was a forward since the last backward."""
        self.has_gradients = False
        """Whether backwards have left gradients that nothing has removed since."""
        self.unsharded: frozenset[int] = frozenset()
        """The groups of ``fully_shard`` for which nothing promises that their parameters are
        sharded, and that no all-gather of them is under way.
        """
        self._ahead = [self._groups_of(group.prefetched("forward")) for group in case.wrap]
        self.reshards: dict[int, bool] = {}
        """By group, the ``reshard_after_forward`` that was set during training."""
        for freeze in case.freezes:
            self._set_requires_grad(freeze.target, False)

    def after_forward(self, group: int) -> AfterForward:
        """How a group is to be after forward."""
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
    def moments_of_op(self) -> frozenset[Moment]:
        """When the op that comes next runs: a forward may disable gradients for itself."""
        alone = self.op.call is not None and not self.op.call.grad
        return self.moments | ({"under_no_grad"} if alone else set())

    @property
    def _moment_after_backward(self) -> Moment | None:
        """By what comes first from here on: a step, or a forward that will have a backward."""
        for op in self.schedule[self.index :]:
            if op.updates or (op.begins and op.begins.grad):
                return "backward_to_step" if op.updates else "between_microbatches"
        return None

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
        """The modules that a forward of ``target`` would call now."""
        return calls_of(self.case, target, self.paths)

    def parameters_at(self, target: str) -> set[str]:
        """The parameters at and below a module, or one of that name."""
        return {fqn for fqn in inferred(self.case).parameters if is_within(fqn, target)}

    def are_frozen_at_construction(self, target: str) -> bool:
        """Whether one of the parameters at ``target`` is frozen before the model is wrapped."""
        frozen = [freeze.target for freeze in self.case.freezes if not freeze.after_wrap]
        return any(is_within_any(fqn, frozen) for fqn in self.parameters_at(target))

    def advance(self, *, skipped: bool = False) -> None:
        """Applies the op."""
        op, taken = self.op, self.taken
        call, begins = op.call, op.begins
        if op.gathers:
            self.unsharded |= self._groups_named(op.below or Below())
        if op.frees:
            self.unsharded -= self._groups_named(op.below or Below())
        if begins:
            self._run_groups(self.calls_of(begins.target))
            self.has_run |= call is not None
            self.loaded = False
        if op.aborts or op.casts_to or op.rebuilds:
            self.unsharded = frozenset()
        if call and call.grad:
            modules = self.calls_of(op.target)
            roots = self._roots_behind(call, modules)
            self.pending.append(Pending(self.index, call, modules, self.synced, roots))
        if op.takes:
            if not op.takes.retains:
                places = {each.place for each in taken}
                self.pending = [each for each in self.pending if each.place not in places]
            for each in taken if not skipped else ():
                self._reshard_after_backward(each)
            self.unsynced = not self.synced or bool(self.off["requires_gradient_sync"])
            self.has_gradients = True
            self.backwards += 1
        self.forwarded = call is not None or (self.forwarded and not op.takes)
        if op.zeroes_gradients and op.set_to_none and not self.case.optimizer.left_out:
            self.has_gradients = False
        if op.updates:
            self.steps, self.backwards, self.zeroed = self.steps + 1, 0, False
        self.zeroed |= op.zeroes_gradients
        if op.switch:
            self._set_flag(op.switch)
        self.flags.follow(op)
        if op.toggle and op.runs_on(self.rank):
            self._set_requires_grad(op.target, op.toggle.value)
        if op.path is not None and op.runs_on(self.rank):
            self.paths[op.target] = op.path
        if op.train is not None:
            self.training = op.train
        if op.grad_enabled is not None:
            self.grad_enabled = op.grad_enabled
        self.loaded |= op.loads
        if op.stepped:
            self.stepped.add(op.stepped)
        if op.adds is not None:
            self.optimized |= self.parameters_at(op.adds)
        if op.casts_to or op.rebuilds:
            self.optimized = self._made_of()
        self.case = self.flags.case = self.case.on(op.mesh)
        if op.casts_to:
            self.cast, self.saved = op.casts_to, None
        self.saved = op.via or self.saved
        self.saving = op.leaves_saving(self.saving)
        self.index += 1
        self.skipped = False

    def _made_of(self) -> set[str]:
        """What an optimizer is made of."""
        left_out = self.case.optimizer.left_out
        every = inferred(self.case).parameters
        return {fqn for fqn in every if not is_within_any(fqn, left_out)}

    def _groups_of(self, modules: Collection[str]) -> frozenset[int]:
        """The groups that have one of ``modules``."""
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
        """The FSDP roots with a parameter that the loss of a forward has a gradient for.

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
        """Whether the loss of a forward depends on one of ``parameters`` that is not frozen; or on
        an input of the root that requires a gradient, where ``inputs`` count.
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

    def _set_flag(self, switch: Switch) -> None:
        chosen = frozenset(modules_named(self.case, self.modules, switch.below))
        before = self.off[switch.flag]
        self.off[switch.flag] = before - chosen if switch.value else before | chosen
        if switch.flag == "reshard_after_forward":
            self.reshards |= dict.fromkeys(self._groups_of(chosen), switch.value)

    def _set_requires_grad(self, target: str, value: bool) -> None:
        names = self.parameters_at(target)
        self.frozen = self.frozen - names if value else self.frozen | names


def follow(case: Case, rank: int = 0, *, skipped: Collection[int] = ()) -> Iterator[ScheduleState]:
    """The state before every op. ``skipped`` are backwards, by the index of their ops."""
    at = ScheduleState(case, rank)
    for index in range(len(case.schedule)):
        yield at
        at.advance(skipped=at.skipped or index in skipped)


def first(case: Case, holds: Callable[[Op], object]) -> int:
    """The first op of which that holds; else the end."""
    return next((i for i, op in enumerate(case.schedule) if holds(op)), len(case.schedule))


def ranks_differ(case: Case) -> bool:
    """Whether some op runs on some ranks only, so that ranks may train different models from there
    on.

    Nothing is comparable then, neither with the reference, whose gradients have no common mean,
    nor between ranks; such a case is judged by its expectations alone.
    """
    return any(op.ranks != "all" for op in case.schedule)


@functools.lru_cache(maxsize=64)  # asked for every tensor that differs
def engines_train_more_from(case: Case) -> int:
    """The first op from which engines train a parameter that the reference keeps frozen; else the
    end.
    """
    for at in follow(case):
        toggle = at.op.toggle
        if toggle and toggle.engines_only and toggle.value and at.op.runs_on(at.rank):
            named = at.parameters_at(toggle.target)
            if named & at.frozen:
                return at.index
    return len(case.schedule)


def ops_that_run(case: Case, engine: str) -> range:
    """The places in the schedule of the ops that an engine gets through; an expected error ends
    its run.
    """
    errors = (e.op for e in case.expect if e.kind == "error" and e.engine == engine)
    return range(min(errors, default=len(case.schedule)))
