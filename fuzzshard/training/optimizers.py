"""The optimizers of a case, and what changes their learning rate."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.optim.lr_scheduler import LRScheduler

from fuzzshard.case.case import Case
from fuzzshard.case.paths import is_within_any
from fuzzshard.engines.base import Engine


class Made(NamedTuple):
    """An optimizer with the second one, its scheduler and its scaler of losses, if it has them."""

    optimizer: torch.optim.Optimizer
    second: torch.optim.Optimizer | None
    scheduler: LRScheduler | None
    scaler: torch.amp.GradScaler | None


def make_optimizer(case: Case, engine: Engine) -> Made:
    """The optimizer of ``case`` over the parameters of ``engine``, frozen ones included; what is
    set apart goes to the second one, if there is one.
    """
    scope, kept, apart = engine.scope, list[torch.Tensor](), list[torch.Tensor]()
    for fqn, parameter in engine.optimized().items():
        (apart if is_within_any(fqn, case.optimizer.set_apart) else kept).append(parameter)
    given = {"parameters": kept, "apart": apart}
    names = [name if held else "" for name, held in given.items()]
    lines = scope.optimizer_lines(names[: len(case.optimizer.each)], scope.script)
    lines += [*scope.scheduler_lines(), *scope.scaler_lines()]
    made = engine.execute(lines, **given)
    return Made(made["optimizer"], made.get("second"), made.get("scheduler"), made.get("scaler"))
