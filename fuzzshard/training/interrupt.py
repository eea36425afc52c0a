"""An exception in the middle of a forward or of a backward, as a user's code may raise one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


class InterruptedIteration(Exception):
    """What a module raises where a schedule has an ``Abort``."""


@contextlib.contextmanager
def interrupted(module: nn.Module, *, in_backward: bool) -> Iterator[None]:
    """Makes ``module`` raise when it is called, or when the gradient of its output arrives.

    Ends the block there. Hooks that the module has already run before: ``fully_shard`` has
    gathered.
    """

    def stop(*args: object) -> None:
        raise InterruptedIteration

    def stop_at_gradient(module: nn.Module, args: object, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(stop)  # type: ignore[no-untyped-call]

    if in_backward:
        handle = module.register_forward_hook(stop_at_gradient)
    else:
        handle = module.register_forward_pre_hook(stop)
    try:
        with contextlib.suppress(InterruptedIteration):
            yield
    finally:
        handle.remove()
