"""The optimizer of a case."""

from __future__ import annotations

import torch

from fuzzshard.case.case import Case
from fuzzshard.case.paths import is_within
from fuzzshard.engines.base import Engine


def make_optimizer(case: Case, engine: Engine) -> torch.optim.Optimizer:
    """The optimizer of ``case`` over the parameters of ``engine``, frozen ones included, excluded
    ones not.
    """
    left_out, scope = case.optimizer.left_out, engine.scope
    parameters = [
        parameter
        for fqn, parameter in engine.optimized().items()
        if not any(is_within(fqn, path) for path in left_out)
    ]
    line = scope.optimizer_line("parameters" if parameters else "", scope.script)
    made: torch.optim.Optimizer = engine.execute([line], parameters=parameters)["optimizer"]
    return made
