"""The schedule as straight-line statements on one model."""

from __future__ import annotations

import dataclasses

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.progress import Progress, ops_that_run
from fuzzshard.case.schedule import (
    Abort,
    Backward,
    Cast,
    ClipGradNorm,
    CorruptState,
    Forward,
    LoadState,
    Op,
    Reshard,
    SaveState,
    SetDivideFactor,
    SetFlag,
    SetMode,
    SetPath,
    SetRequiresGrad,
    Step,
    TakeStateDict,
    Unshard,
    ZeroGrad,
)
from fuzzshard.case.units import fsdp1_shards
from fuzzshard.model.names import seed_of
from fuzzshard.reproducer import module_ops
from fuzzshard.reproducer.aim import Aim
from fuzzshard.reproducer.backward_lines import BackwardLines
from fuzzshard.reproducer.expected import expecting
from fuzzshard.reproducer.forward_lines import ForwardLines
from fuzzshard.reproducer.inputs import InputNames
from fuzzshard.reproducer.losses import losses
from fuzzshard.reproducer.optimizer import optimizer_lines, uses_parameters
from fuzzshard.reproducer.options import fsdp1_summon_lines
from fuzzshard.reproducer.scope import Scope, at, indented, merged
from fuzzshard.reproducer.setup import freeze_lines
from fuzzshard.reproducer.state_ops import States
from fuzzshard.reproducer.sync import SyncPlan, sync_plan
from fuzzshard.reproducer.watch import Watch

_STOPS_AT_OP = ("communication", "hooks", "error")
"""Kinds that look at what an op does, not at what it leaves behind."""

_NO_MATTER_OF_VALUES = ("presence", "held", "outlives", "accumulation")
"""Kinds for which nobody averages gradients by hand."""


class Program:
    """Writes the ops up to the one that the aim looks at; ``lines`` is the result.

    ``called`` is the variable that a forward of the root calls, ``model`` the one whose attributes are
    modules and parameters: they differ for engines that put a module around the model.
    """

    def __init__(self, case: Case, aim: Aim, *, called: str, model: str) -> None:
        self.case, self.aim = case, aim
        self.scope = Scope(case, aim, called, model)
        self.facts = facts(case)
        end = ops_that_run(case, aim.engine).stop
        self.last = end - 1 if aim.op is None else aim.op
        self.ops = case.schedule[: self.last + 1]
        self.losses = losses(case, self.last)
        self.inputs = InputNames(case, self.ops)
        self.sync = self._sync_plan()
        self._flags = module_ops.Flags(self.scope)
        self._states = States(self.scope)
        self.watch = Watch(self.scope, self.ops, self.inputs, sums=self._sums)
        self.forwards = ForwardLines(
            self.scope,
            self.ops,
            self.inputs,
            self.losses,
            self.watch,
            inlines=self.sync.plain and aim.kind not in _STOPS_AT_OP,
        )
        self.backwards = BackwardLines(
            self.scope, self.ops, self.forwards, self.sync, self._flags, reference=self.averages_reference
        )
        self._progress = Progress(case)
        self._taken = False
        ops = merged([line for i in range(len(self.ops)) for line in self._advance(i)])
        self.lines = self._setup() + module_ops.with_blocks(ops)

    @property
    def uses(self) -> set[str]:
        """The helpers and things that the statements name."""
        return self.scope.uses

    @property
    def by_hand(self) -> bool:
        """Whether a list says whose gradients are averaged by hand."""
        return bool(self.sync.names and self.losses.taken) and not self.averages_reference

    @property
    def averages_reference(self) -> bool:
        """Whether gradients are averaged by hand for the reference, all of them, and for no other model."""
        engine_does = self.aim.engine != "fully_shard" or None not in self.facts.owners.values()
        return self.aim.seeded and self.aim.kind == "compare" and self.sync.plain and engine_does

    @property
    def rebuilds(self) -> bool:
        """Whether the model is built a second time, with other values."""
        return any(isinstance(op, CorruptState) and op.how == "rebuild" for op in self.ops)

    @property
    def casts(self) -> bool:
        """Whether inputs change their dtype."""
        return any(isinstance(op, Cast) for op in self.ops)

    @property
    def _sums(self) -> bool:
        return self.by_hand and not self.sync.plain

    def _sync_plan(self) -> SyncPlan:
        owners = set(self.facts.owners.values())
        if self.aim.kind in _NO_MATTER_OF_VALUES:
            owners = set()
        elif self.aim.kind != "compare":
            owners &= {None} if self.aim.engine == "fully_shard" else set()
        plan = sync_plan(self.case, self.aim, self.last, owners, self.losses.taken)
        return (
            dataclasses.replace(plan, plain=False) if self.case.tensor_parallel and None in owners else plan
        )

    def _setup(self) -> list[str]:
        flat = self.scope.has_flat_parameters
        lines = freeze_lines(self.case, self.scope.model, after_wrap=True, flat=flat)
        lines += self._parameters()
        if self._sums:
            lines.append("local = {}  # sums of gradients that are not averaged yet")
        if self.aim.trains_reference and self.aim.op is None:
            lines.append("seen = {}")
        return lines

    def _parameters(self) -> list[str]:
        """What is made of a model's parameters, at the beginning and when they were replaced."""
        lines = []
        watched = {"gradient", "local_gradient", "parameter", "resume"} & set(self.aim.oracles)
        if parameter := self.watch.parameter:
            lines.append(f"{parameter} = {at(self.scope.model, self.aim.name)}")
        is_returned = self.watch.watched or self.aim.kind == "presence"
        if (watched and not is_returned) or self.aim.kind == "replicas" or uses_parameters(self.scope):
            lines.append(f"params = {self.scope.parameters(self.scope.model)}")
        needed = Step | ZeroGrad | SaveState | LoadState | CorruptState
        return lines + (optimizer_lines(self.scope) if any(isinstance(o, needed) for o in self.ops) else [])

    def _renewed(self) -> list[str]:
        """The same, later."""
        by_hand = f"by_hand = {{name: {self.scope.model}.get_parameter(name) for name in by_hand}}"
        return [*self._parameters(), *([by_hand] if self.by_hand else [])]

    def _advance(self, index: int) -> list[str]:
        lines = self._op(index)
        self._progress.advance(skipped=index in self.losses.skipped)
        if self.aim.op == index and self.aim.kind in _STOPS_AT_OP:
            return expecting(self.case, self.aim, lines)
        return lines

    def _op(self, index: int) -> list[str]:
        match self.ops[index]:
            case Forward() as op:
                return self.forwards.lines(index, op)
            case Backward():
                stops = self.aim.op == index and self.aim.kind in _STOPS_AT_OP
                return self.backwards.lines(index, stops=stops)
            case Step():
                lines = [*self._reshard(), *self.scope.wait("before_step"), "optimizer.step()"]
                lines += [*module_ops.event_lines(self.scope), *self._summon()]
                lines += self.scope.wait("after_step")
                return [*lines, *self.watch.lines(index, ("parameter", *self._taken_oracle))]
            case ZeroGrad(set_to_none=to_none):
                return [f"optimizer.zero_grad({'' if to_none else 'set_to_none=False'})"]
            case Abort() as op:
                forget = ["local.clear()"] if self._sums else []
                return [*self.forwards.aborted(index, op), *forget]
            case ClipGradNorm() as op:
                return [*module_ops.clip_lines(self.scope, op), *self.watch.lines(index, ("gradient",))]
            case SaveState() | LoadState() | CorruptState() | TakeStateDict() as op:
                return self._state(index, op)
            case op:
                return self._setting(op)

    def _summon(self) -> list[str]:
        """What a case does with the full parameters of FSDP1 after a step."""
        if self.aim.engine != "fsdp1":
            return []
        lines = fsdp1_summon_lines(self.case.fsdp1, self.scope.called, shards=fsdp1_shards(self.case))
        if lines and self.aim.trains_reference:
            return [f"if isinstance({self.scope.called}, FullyShardedDataParallel):", *indented(lines)]
        return lines

    def _setting(self, op: Op) -> list[str]:
        """An op that sets something."""
        match op:
            case SetFlag():
                return self._flags.lines(op)
            case SetRequiresGrad():
                return [*self._reshard(), *module_ops.freeze_op_lines(self.scope, op)]
            case SetMode(train=train):
                return [f"{self.scope.called}.{'train' if train else 'eval'}()"]
            case SetPath():
                return module_ops.path_lines(self.scope, op)
            case SetDivideFactor():
                return module_ops.divide_factor_lines(self.scope, op)
            case Unshard() | Reshard():
                return module_ops.unshard_lines(self.scope, op)
            case Cast(dtype=dtype):
                self.inputs.change_dtype(dtype)
                self._taken = False
                return [*self._reshard(), f"{self.scope.called}.to(torch.{dtype})", *self._renewed()]
            case _:
                return []

    def _state(self, index: int, op: Op) -> list[str]:
        match op:
            case TakeStateDict():
                self._taken = True
                return [
                    f"taken = {self.scope.called}.state_dict()",
                    *self.watch.lines(index, ("state_dict",)),
                ]
            case SaveState():
                return [*self._states.save(op), *self.watch.lines(index, ("parameter", "resume"))]
            case LoadState():
                lines = self._states.load(op, self._renewed())
                self._taken &= not op.assign
                oracles = ("parameter", "buffer", "resume", *self._taken_oracle)
                return [*lines, *self.watch.lines(index, oracles)]
            case CorruptState(how="zero"):
                return [*self._reshard(), *self._states.zero(), *self.watch.lines(index, ("resume",))]
            case _:
                self._taken = False
                return [*self._rebuild(index), *self.watch.lines(index, ("resume",))]

    def _rebuild(self, index: int) -> list[str]:
        """Makes the model anew; what was set on it before is set again."""
        seed = 1 if self.aim.seeded else seed_of(self.case.seed, "rebuilt")
        variables = ", ".join(dict.fromkeys((self.scope.called, self.scope.model)))
        lines = [f"{variables} = make_model(seed={seed})"]
        lines += freeze_lines(
            self.case, self.scope.model, after_wrap=True, flat=self.scope.has_flat_parameters
        )
        self._flags = self.backwards.flags = module_ops.Flags(self.scope)
        for op in self.ops[:index]:
            if isinstance(op, SetFlag | SetRequiresGrad | SetMode | SetPath | SetDivideFactor):
                lines += self._setting(op)
            elif isinstance(op, Cast):
                lines.append(f"{self.scope.called}.to(torch.{op.dtype})")
        return [*lines, *self._renewed(), *(["local = {}"] if self._sums else [])]

    @property
    def _taken_oracle(self) -> tuple[str, ...]:
        """What looks at a state dict that was taken earlier; those of FSDP1 are copies."""
        return ("state_dict",) if self._taken and self.aim.engine != "fsdp1" else ()

    def _reshard(self) -> list[str]:
        return module_ops.reshard_lines(self.scope) if self._progress.may_be_unsharded else []
