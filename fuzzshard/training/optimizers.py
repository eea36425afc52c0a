"""The optimizer of a case, and what changes its learning rate."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.optim.lr_scheduler import LRScheduler

from fuzzshard.case.case import Case
from fuzzshard.case.paths import is_within_any
from fuzzshard.engines.base import Engine


class Made(NamedTuple):
    """An optimizer with its scheduler and its scaler of losses, if it has them."""

    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler | None
    scaler: torch.amp.GradScaler | None


def make_optimizer(case: Case, engine: Engine) -> Made:
    """The optimizer of ``case`` over the parameters of ``engine``, frozen ones included, excluded
    ones not.
    """
    left_out, scope = case.optimizer.left_out, engine.scope
    parameters = [
        parameter
        for fqn, parameter in engine.optimized().items()
        if not is_within_any(fqn, left_out)
    ]
    line = scope.optimizer_line("parameters" if parameters else "", scope.script)
    lines = [line, *scope.scheduler_lines(), *scope.scaler_lines()]
    made = engine.execute(lines, parameters=parameters)
    return Made(made["optimizer"], made.get("scheduler"), made.get("scaler"))
