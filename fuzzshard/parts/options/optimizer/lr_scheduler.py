"""``torch.optim.lr_scheduler``, stepped after every step of the optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.option import Drawing
from fuzzshard.parts.options.optimizer import OptimizerOption

_CALLS = {
    "step_lr": "StepLR(optimizer, step_size=1, gamma=0.5)",
    "cosine_annealing_lr": "CosineAnnealingLR(optimizer, T_max=8)",
    "one_cycle_lr": (
        'OneCycleLR(optimizer, optimizer.defaults["lr"], total_steps=64, cycle_momentum=False)'
    ),
}
"""One cycle has more steps than any schedule: its last one may not be followed by another."""


class LRScheduler(OptimizerOption):
    """Which scheduler changes the learning rate.

    "Learning rate scheduling should be applied after optimizer's update" (docs of torch.optim).
    The learning rate is in the optimizer's ``param_groups``: its state is saved and loaded with
    that of the scheduler (``LambdaLR.load_state_dict``).
    """

    name, extension = "lr_scheduler", Choice("lr_scheduler", 12, 101, needs=("several_steps",))
    meanings = {
        "optimizer:step_lr": "a learning rate that StepLR halves after every step",
        "optimizer:cosine_annealing_lr": "a learning rate of CosineAnnealingLR",
        "optimizer:one_cycle_lr": "a learning rate of OneCycleLR",
    }

    @override
    def scheduler(self, value: str | None) -> str:
        return f"torch.optim.lr_scheduler.{_CALLS[value]}" if value else ""

    @override
    def features(self, value: str) -> Iterator[str]:
        yield f"optimizer:{value}"

    @override
    def value(self, drawing: Drawing) -> str | None:
        if self.name not in drawing.swarm:
            return None
        exact = drawing.case.values == "dyadic"
        return "step_lr" if exact else drawing.tape.pick((*_CALLS,))
