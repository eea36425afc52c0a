"""Running averages of the parameters."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.moments import MODIFIED
from fuzzshard.parts.ops.set_grad_dtype import COPIED_GRADIENTS


class RunningAverage(op.Op, tag="running_average", frozen=True, kw_only=True):
    """``AveragedModel.update_parameters()``: an exponential average with ``decay``, or an equal
    one without. What comes first of a schedule says which.

    ``fully_shard`` cannot be copied ("FSDP does not support deepcopy"), so that the average is of
    the parameters alone. ``copied``: the average becomes their value.
    """

    decay: float | None = None
    copied: bool = False

    says = "running_average(decay={op.decay}, copied={op.copied})"
    lane = "optimizer"
    looks = ("registered", "trained")
    wants_sharded = True
    never = {"forward_to_backward": MODIFIED}
    sources = """
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_swa_avg_fn

def update_average(averaged, parameters, decay):  # of the parameters alone
    parameters = nn.ParameterList(parameters)
    if averaged is None:
        avg_fn = get_swa_avg_fn() if decay is None else get_ema_avg_fn(decay)
        averaged = AveragedModel(parameters, avg_fn=avg_fn)
    averaged.update_parameters(parameters)
    return averaged
"""
    meanings = {
        "op:running_average": "a running average of the parameters",
        "op:running_average_copied": "a running average that is copied into the parameters",
    }
    choices = (op.Choice("running_average", 11, 108, needs=("several_steps",)),)
    comes = ("update",), 80

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.averaged = True

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        if self.copied:
            yield from at.changed_misfits()
        if any(each.retypes for each in at.ops):
            yield COPIED_GRADIENTS

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "op:running_average_copied" if self.copied else "op:running_average"
        yield from at.late_change()

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        parameters = f"{scope.called}.parameters()"
        lines = [f"averaged = update_average(averaged, {parameters}, {self.decay})"]
        if self.copied:
            lines += [
                "with torch.no_grad():",
                f"    for p, mean in zip({parameters}, averaged.parameters()):",
                "        p.copy_(mean)",
                *scope.event_lines,
            ]
        return lines

    @classmethod
    @override
    def drawn(cls, run: op.Run) -> tuple[op.Op, ...]:
        return (cls(decay=run.tape.pick((0.5, 0.875, None)), copied=run.tape.chance(50)),)
