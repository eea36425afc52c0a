"""Doubles every gradient that fully_shard reduces, in the processes that load this file.

By public methods alone, so that every torch has it. What doctor must find.
"""

from __future__ import annotations

import sys
from typing import Any

from torch.distributed.fsdp import fully_shard


def doubled(module: Any, *, mesh: Any, **options: Any) -> Any:
    """Wraps as ``fully_shard`` does."""
    wrapped = fully_shard(module, mesh=mesh, **options)
    for each in module if isinstance(module, list) else [module]:
        each.set_force_sum_reduction_for_comms(True)
        each.set_gradient_divide_factor(mesh.size() / 2)
    return wrapped


doubled.__module__ = fully_shard.__module__
vars(sys.modules[fully_shard.__module__])[fully_shard.__name__] = doubled
