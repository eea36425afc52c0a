"""The optimizers of a case, and what changes their learning rate."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.optim.lr_scheduler import LRScheduler

from fuzzshard.case.case import Case
from fuzzshard.case.optimized import shares
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
    scope, every, spec = engine.scope, engine.optimized(), case.optimizer
    held = [fqn for fqn in every if not is_within_any(fqn, spec.left_out)]
    parts = enumerate(shares(spec, held))
    given = {f"parameters{i}": [every[fqn] for fqn in part] for i, part in parts}
    names = [name if parameters else "" for name, parameters in given.items()]
    lines = scope.optimizer_lines(names, scope.script)
    lines += [*scope.scheduler_lines(), *scope.scaler_lines()]
    made = engine.execute(lines, **given)
    return Made(made["optimizer"], made.get("second"), made.get("scheduler"), made.get("scaler"))
