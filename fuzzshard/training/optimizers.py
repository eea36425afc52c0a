"""The optimizer of a case."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from fuzzshard.case.case import Case
from fuzzshard.case.paths import is_within
from fuzzshard.engines.base import Engine


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
        if not any(is_within(fqn, path) for path in spec.exclude):
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            kinds.setdefault((mesh, parameter.dtype, parameter.device), []).append(parameter)
    groups: list[dict[str, Any]] = [{"params": kind} for kind in kinds.values()] or [
        {"params": []}
    ]
    options: dict[str, Any] = {
        "lr": spec.lr,
        "weight_decay": spec.weight_decay,
        "foreach": spec.foreach,
    }
    match spec.kind:
        case "sgd":
            options["momentum"] = spec.momentum
            return engine.make_optimizer(torch.optim.SGD, groups, **options)
        case "adam":
            return engine.make_optimizer(torch.optim.Adam, groups, **options)
        case "adamw":
            return engine.make_optimizer(torch.optim.AdamW, groups, **options)
