"""Records the collectives that Python code of torch issues, per engine run.

``fully_shard`` calls them through ``torch.distributed`` (its names changed between versions:
``all_gather_into_tensor`` became ``all_gather_single``); DDP's reducer calls them in C++ and is not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

NAMES = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "all_to_all_single",
)

_log: list[str] | None = None


def _recorded(name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(collective)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _log is not None:
            sizes = [str(a.numel()) for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
            _log.append(f"{name}({', '.join(sizes)})")
        return collective(*args, **kwargs)

    return call


def install() -> None:
    """Wraps the entry points; once per rank process."""
    for name in NAMES:
        if hasattr(dist, name):
            setattr(dist, name, _recorded(name, getattr(dist, name)))


def record_into(log: list[str] | None) -> None:
    """From now on collectives are appended to ``log``; None stops recording."""
    global _log
    _log = log
