"""The optimizer of a case, and what changes its learning rate."""

from __future__ import annotations

import torch
from torch.optim.lr_scheduler import LRScheduler

from fuzzshard.case.case import Case
from fuzzshard.case.paths import is_within
from fuzzshard.engines.base import Engine


def make_optimizer(case: Case, engine: Engine) -> tuple[torch.optim.Optimizer, LRScheduler | None]:
    """The optimizer of ``case`` over the parameters of ``engine``, frozen ones included, excluded
    ones not; and its scheduler, if it has one.
    """
    left_out, scope = case.optimizer.left_out, engine.scope
    parameters = [
        parameter
        for fqn, parameter in engine.optimized().items()
        if not any(is_within(fqn, path) for path in left_out)
    ]
    line = scope.optimizer_line("parameters" if parameters else "", scope.script)
    made = engine.execute([line, *scope.scheduler_lines()], parameters=parameters)
    return made["optimizer"], made.get("scheduler")
