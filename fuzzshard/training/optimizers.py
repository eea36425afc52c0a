"""The optimizer of a case."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from fuzzshard.case.case import Case
from fuzzshard.case.paths import is_within
from fuzzshard.engines.base import Engine
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.script import script_of


def make_optimizer(case: Case, engine: Engine) -> torch.optim.Optimizer:
    """The optimizer of ``case`` over the parameters of ``engine``, frozen ones included, excluded
    ones not.

    Sharded and plain parameters go into a parameter group each, and so does every dtype and
    device: the foreach implementations, the default on CUDA, refuse lists that mix DTensors and
    Tensors.
    """
    spec = case.optimizer
    kinds: dict[tuple[object, ...], list[nn.Parameter]] = {}
    for fqn, parameter in engine.optimized().items():
        if not any(is_within(fqn, path) for path in spec.left_out):
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            kinds.setdefault((mesh, parameter.dtype, parameter.device), []).append(parameter)
    groups: list[dict[str, Any]] = [{"params": kind} for kind in kinds.values()] or [
        {"params": []}
    ]
    kind, given = spec.call()
    arguments = ["parameters", *given]
    line = script_of(engine.name).optimizer_line(kind, arguments, MeshNames(case, within=True))
    made: torch.optim.Optimizer = engine.execute([line], parameters=groups)["optimizer"]
    return made
