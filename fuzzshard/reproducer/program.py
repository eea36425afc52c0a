"""The schedule as straight-line statements on one model."""

from __future__ import annotations

import dataclasses

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.losses import losses
from fuzzshard.case.schedule_state import ScheduleState, ops_that_run
from fuzzshard.model.statements import call_lines, indented, seed_of
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.setup import checkpoint_lines
from fuzzshard.program.wrapping import build_call
from fuzzshard.reproducer.aim import Aim
from fuzzshard.reproducer.backward_lines import BackwardLines, Flags, with_blocks
from fuzzshard.reproducer.expected import expecting
from fuzzshard.reproducer.forward_lines import ForwardLines
from fuzzshard.reproducer.inputs import InputNames
from fuzzshard.reproducer.optimizer import optimizer_lines, uses_parameters
from fuzzshard.reproducer.scope import Scope, merged, on_ranks
from fuzzshard.reproducer.sync import SyncPlan, sync_plan
from fuzzshard.reproducer.watch import Watch

UNWRAPPED = 'inner = getattr(model, "module", model)'
"""What a function that trains does first, if attributes of the model are below a wrapper."""


class Program:
    """Writes the ops up to the one that the aim looks at; ``lines`` is the result.

    ``called`` is the variable that a forward of the root calls, ``model`` the one whose attributes
    are modules and parameters: they differ for engines that put a module around the model.
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
        self.flags = Flags(self.scope)
        self.watch = Watch(self.scope, self.ops, self.inputs, sums=self.sums)
        self.forwards = ForwardLines(
            self.scope,
            self.ops,
            self.inputs,
            self.losses,
            self.watch,
            inlines=self.sync.plain and not aim.stops_at_op,
        )
        self.backwards = BackwardLines(
            self.scope,
            self.ops,
            self.forwards,
            self.sync,
            self.flags,
            reference=self.averages_reference,
            hooks=self.keeps_hooks,
        )
        self.at = ScheduleState(case)
        self.taken = False
        """Whether a state dict that was taken earlier is still the model's."""
        ops = merged([line for i in range(len(self.ops)) for line in self._advance(i)])
        self.lines = self._setup() + with_blocks(ops)

    @property
    def models(self) -> tuple[str, ...]:
        """The variables of the model, as a function that trains gets it."""
        if self.aim.trains_reference:
            return tuple(dict.fromkeys(("model", self.scope.called)))
        return tuple(dict.fromkeys((self.scope.called, self.scope.model)))

    @property
    def made(self) -> tuple[str, ...]:
        """All variables that building the model makes."""
        return (*self.models, *self.scope.script.made)

    @property
    def by_hand(self) -> bool:
        """Whether a list says whose gradients are averaged by hand."""
        return bool(self.sync.names and self.losses.taken) and not self.averages_reference

    @property
    def averages_reference(self) -> bool:
        """Whether gradients are averaged by hand for the reference, all of them, and for no other
        model.
        """
        by_groups = self.scope.engine.applies_groups
        engine_does = not by_groups or None not in self.facts.owners.values()
        return self.aim.seeded and self.aim.kind == "compare" and self.sync.plain and engine_does

    @property
    def keeps_hooks(self) -> bool:
        """Whether hooks on what has accumulated are kept until gradients were averaged by hand."""
        by_hand = bool(self.sync.names and self.losses.taken) and self.aim.kind == "compare"
        return by_hand and any(op.hooked and op.hooked.accumulated for op in self.ops)

    @property
    def rebuilds(self) -> bool:
        """Whether the model is built a second time, with other values."""
        return any(op.rebuilds for op in self.ops)

    @property
    def moves(self) -> bool:
        """Whether that happens on another mesh, which the engine gets."""
        takes_mesh = self.scope.script.takes_mesh(self.case) or not self.scope.names.flat
        return takes_mesh and any(op.mesh for op in self.ops)

    @property
    def casts(self) -> bool:
        """Whether inputs change their dtype."""
        return any(op.casts_to for op in self.ops)

    @property
    def sums(self) -> bool:
        """Whether gradients that are not averaged yet are added up by hand."""
        return self.by_hand and not self.sync.plain

    def _sync_plan(self) -> SyncPlan:
        owners = set(self.facts.owners.values())
        if self.aim.ignores_values:
            owners = set()
        elif self.aim.kind != "compare":
            owners &= {None} if self.scope.engine.applies_groups else set()
        plan = sync_plan(self.case, self.aim, self.last, owners, self.losses.taken)
        return (
            dataclasses.replace(plan, plain=False)
            if self.case.tensor_parallel and None in owners
            else plan
        )

    def _setup(self) -> list[str]:
        lines = self.scope.freeze_lines()
        if any(op.grad_enabled is not None for op in self.ops):
            lines.append("torch.set_grad_enabled(True)")
        lines += self._parameters()
        if any(op.averages for op in self.ops):
            lines.append("averaged = None")
        if self.keeps_hooks:
            lines.append("hooks = []  # of the reference, for when its gradients are averaged")
        if self.sums:
            lines.append("local = {}  # sums of gradients that are not averaged yet")
        if self.aim.trains_reference and self.aim.op is None:
            lines.append("seen = {}")
        return lines

    def _parameters(self) -> list[str]:
        """What is made of a model's parameters, at the beginning and when they were replaced."""
        lines = []
        watched = any(oracle.in_flat for oracle in self.aim.oracles)
        if parameter := self.watch.parameter:
            lines.append(f"{parameter} = {self.scope.at(self.aim.name)}")
        is_returned = self.watch.watched or self.aim.kind == "presence"
        if (
            (watched and not is_returned)
            or self.aim.rule.takes_parameters
            or uses_parameters(self.scope)
        ):
            lines.append(f"params = {self.scope.parameters(self.scope.model)}")
        has_optimizer = any(
            op.of_optimizer
            or op.via
            or op.loads
            or op.corrupts
            or (op.takes and self.scope.scaler_lines())
            for op in self.ops
        )
        return [*lines, *(optimizer_lines(self.scope) if has_optimizer else [])]

    def renewed(self) -> list[str]:
        """The same, later."""
        by_hand = f"by_hand = {{name: {self.scope.model}.get_parameter(name) for name in by_hand}}"
        return [*self._parameters(), *([by_hand] if self.by_hand else [])]

    def _advance(self, index: int) -> list[str]:
        op = self.ops[index]
        lines = on_ranks(op.ranks, op.lines(self, index))
        self.at.advance(skipped=index in self.losses.skipped)
        return expecting(self.case, self.aim, lines) if self.stops_at(index) else lines

    def stops_at(self, index: int) -> bool:
        """Whether the script ends within this op."""
        return self.aim.op == index and self.aim.stops_at_op

    def rebuild(self, index: int) -> list[str]:
        """Makes the model anew, perhaps on another mesh; what was set on it is set again."""
        seed = 1 if self.aim.seeded else seed_of(self.case.seed, "rebuilt")
        given, variables = [f"seed={seed}"], ", ".join(self.made)
        if self.moves:
            names = MeshNames(self.at.case.on(self.ops[index].mesh))
            given.append(f"{names.variable}={names.expression()}")
        lines = call_lines(f"{variables} = make_model", given)
        if self.aim.trains_reference:
            lines = [
                "if model is reference:",
                f"    {' = '.join(self.models)} = reference = {build_call(self.case, seed)}",
                *indented(checkpoint_lines(self.case, "model", reference=True)),
                "else:",
                *indented(call_lines(f"{variables} = make_model", given)),
                *([UNWRAPPED] if self.scope.model != "model" else []),
            ]
        lines += self.scope.freeze_lines()
        self.taken = False
        self.flags = self.backwards.flags = Flags(self.scope)
        self.forwards.stages.has_schedule = False
        lines += [
            line for op in self.ops[:index] for line in on_ranks(op.ranks, op.lines_again(self))
        ]
        lines += ["averaged = None"] if any(op.averages for op in self.ops) else []
        return [*lines, *self.renewed(), *(["local = {}"] if self.sums else [])]

    def look(self, index: int) -> list[str]:
        """What is looked at after the op at ``index``; state dicts of units are copies."""
        keeps = self.taken and not self.scope.engine.has_units
        looks = [look for look in self.ops[index].looks if keeps or look != "taken"]
        return self.watch.lines(index, looks)
