"""Clipping the norm of gradients, however they are held."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor


def clip_grad_norm(
    parameters: Iterable[nn.Parameter], max_norm: float, norm_type: float, device: torch.device
) -> None:
    """``clip_grad_norm_``, which takes DTensors of one mesh, or plain tensors, and no mixture of
    them.

    A mixture is clipped as users do it: by the norm of the norms of its kinds, each taken on
    ``device``, where the mesh communicates.
    """
    kinds: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        if (gradient := parameter.grad) is not None:
            mesh = gradient.device_mesh if isinstance(gradient, DTensor) else None
            kinds.setdefault((mesh, gradient.device.type), []).append(parameter)
    if len(kinds) == 1 and next(iter(kinds.values()))[0].device.type == device.type:
        (together,) = kinds.values()
        torch.nn.utils.clip_grad_norm_(together, max_norm, norm_type)
        return
    norms = [
        _norm([p.grad for p in kind if p.grad is not None], norm_type, device)
        for kind in kinds.values()
    ]
    if norms:
        total = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        for kind in kinds.values():
            torch.nn.utils.clip_grads_with_norm_(kind, max_norm, total)


def _norm(gradients: list[torch.Tensor], norm_type: float, device: torch.device) -> torch.Tensor:
    norm = torch.nn.utils.get_total_norm([g.to(device.type) for g in gradients], norm_type)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
