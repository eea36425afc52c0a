"""The schedule: the training run as a small straight-line program of ops.

Every op means the same under every engine. Ops name modules by their path from the root (``""`` is
the root) and apply at the point where they stand.
"""

from __future__ import annotations

from typing import Literal

from fuzzshard.case.graph import Part


class Forward(Part, tag="forward", frozen=True, kw_only=True):
    """Runs ``target`` on input batch ``batch`` and keeps the loss pending for a later backward.

    The same ``batch`` number means the same tensors. ``grad=False`` runs under ``torch.no_grad()``
    and leaves nothing pending. ``outputs`` are the indices of the outputs that enter the loss
    (None: all).
    """

    batch: int = 0
    target: str = ""
    grad: bool = True
    outputs: tuple[int, ...] | None = None


class Backward(Part, tag="backward", frozen=True, kw_only=True):
    """Calls ``backward`` on the sum of all pending losses, or only on the oldest or newest one."""

    which: Literal["all", "oldest", "newest"] = "all"


class Step(Part, tag="step", frozen=True, kw_only=True):
    """``optimizer.step()``."""


class ZeroGrad(Part, tag="zero_grad", frozen=True, kw_only=True):
    """``optimizer.zero_grad(set_to_none=...)``."""

    set_to_none: bool = True


Flag = Literal["requires_gradient_sync", "requires_all_reduce", "is_last_backward", "reshard_after_backward"]


class SetFlag(Part, tag="set_flag", frozen=True, kw_only=True):
    """``FSDPModule.set_<flag>(value)`` on the wrapped modules below ``target``, or on it alone.

    For DDP the first two at the root are ``no_sync()``; the last two have no counterpart.
    """

    flag: Flag
    value: bool
    target: str = ""
    recurse: bool = True


class SetRequiresGrad(Part, tag="set_requires_grad", frozen=True, kw_only=True):
    """``requires_grad_(value)`` on a parameter, or on every parameter of a module."""

    target: str
    value: bool


class SetMode(Part, tag="set_mode", frozen=True, kw_only=True):
    """``model.train()`` or ``model.eval()``."""

    train: bool


Op = Forward | Backward | Step | ZeroGrad | SetFlag | SetRequiresGrad | SetMode
