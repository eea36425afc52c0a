"""``optimizer.add_param_group()``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.statements import LONG, call_lines

KEPT_GROUPS = (
    "a state of an optimizer is kept whose groups change",
    '"loaded state dict has a different number of parameter groups" '
    "(torch/optim/optimizer.py): remove either",
)
"""Why one schedule has not both."""


class AddParamGroup(op.Op, tag="add_param_group", frozen=True, kw_only=True):
    """Gives the optimizer what is at ``target``, which it was made without, as a group with a
    learning rate of its own.

    "This can be useful when fine tuning a pre-trained network as frozen layers can be made
    trainable and added to the Optimizer as training progresses" (torch/optim/optimizer.py).
    """

    target: str
    rate: float | None = None

    lane = "optimizer"
    of_optimizer = wants_sharded = True
    meanings = {"op:add_param_group": "parameters that the optimizer gets later"}
    choices = (
        op.Choice(
            "add_param_group",
            5,
            107,
            needs=("exclude", "several_steps"),
            excludes=("second_optimizer",),
        ),
    )
    comes = ("step_begins", "between_rounds", "before_step"), 30

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.optimized |= at.parameters_at(self.target)
        at.added = True

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "op:add_param_group"
        yield from at.late_change()

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        if any(each.via for each in at.ops):
            yield KEPT_GROUPS
        new = at.parameters_at(self.target)
        if not new or new & at.optimized:
            yield (
                f"the optimizer has what it gets at {self.target!r}, or nothing is there",
                "name what optimizer.exclude names, once",
            )
        optimizer, shapes = at.case.optimizer, at.found.parameters
        for fqn in new:
            if not optimizer.takes(shapes[fqn]):
                yield f"{optimizer.kind} gets {fqn!r}: it is for matrices", "leave it out"
        if at.case.optimizer.scheduler:
            yield (
                "a scheduler has no rate of a group that is added later",
                "torch/optim/lr_scheduler.py takes the rates of the groups that there are when it "
                "is made: remove either",
            )

    @override
    def statement(self, index: int, *losses: int) -> str:
        rate = "" if self.rate is None else f', "lr": {self.rate}'
        at = op.expression(self.target)
        return f'optimizer.add_param_group({{"params": {at}{rate}}})'

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        rate = "" if self.rate is None else f', "lr": {self.rate}'
        added = scope.within([self.target])
        listed, lines = f"[{', '.join(added)}]", list[str]()
        if len(listed) > LONG:
            lines, listed = call_lines("added = ", added, "[]"), "added"
        return [*lines, f'optimizer.add_param_group({{"params": {listed}{rate}}})']

    @classmethod
    @override
    def drawn(cls, run: op.Run) -> tuple[op.Op, ...]:
        paths = run.case.optimizer.left_out
        if not paths:
            return ()
        return (cls(target=run.tape.pick(paths), rate=run.tape.pick((None, 0.25))),)
