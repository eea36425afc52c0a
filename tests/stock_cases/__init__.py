"""Hand-written cases that stock torch passes, by what each is about. Together they have every
feature.
"""

from __future__ import annotations

from stock_cases.batches import BATCHES
from stock_cases.calls import CALLS
from stock_cases.ddp import DDP_OPTIONS
from stock_cases.engines import ENGINES, NEEDS_CUDA, TENSOR
from stock_cases.groups import ABORTED, COMMUNICATION, FINALIZED, PRECISIONS, SHARDING
from stock_cases.models import GRAPHS, LEAVES, REUSE
from stock_cases.plans import FREEZES, MESHES, WRAPS
from stock_cases.states import STATES
from stock_cases.stock import Stock
from stock_cases.training import OPTIONS, SCHEDULES

__all__ = ["NEEDS_CUDA", "STOCK", "Stock"]

STOCK: dict[str, Stock] = {
    f"{area}: {name}": stock
    for area, table in {
        "leaf": LEAVES,
        "graph": GRAPHS,
        "call": CALLS,
        "reuse": REUSE,
        "wrap": WRAPS,
        "mesh": MESHES,
        "freeze": FREEZES,
        "schedule": SCHEDULES,
        "option": OPTIONS,
        "sharding": SHARDING,
        "communication": COMMUNICATION,
        "finalize": FINALIZED,
        "abort": ABORTED,
        "precision": PRECISIONS,
        "state": STATES,
        "engine": ENGINES,
        "ddp": DDP_OPTIONS,
        "tensor": TENSOR,
        "batches": BATCHES,
    }.items()
    for name, stock in table.items()
}
"""Stock torch passes: no rule of ours accuses it, whatever the case has."""
