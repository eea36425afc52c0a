"""DDP with ``ZeroRedundancyOptimizer``: a rank makes the step of its parameters, and broadcasts
them.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from typing_extensions import override

from fuzzshard.engines.ddp import contract
from fuzzshard.engines.ddp.engine import DDP
from fuzzshard.engines.optimizer_state import NO_SAVED_STATE
from fuzzshard.engines.refusals import Refusal


class ZeroRedundancy(DDP):
    """DDP, whose optimizer is sharded: what a rank receives is written to ``parameter.data``."""

    name: ClassVar[str] = "zero_redundancy"
    refusals: ClassVar[tuple[Refusal, ...]] = tuple(
        refusal for refusal in contract.REFUSALS if refusal is not NO_SAVED_STATE
    )
    counts_versions: ClassVar[bool] = False

    @override
    def local_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        assert isinstance(optimizer, ZeroRedundancyOptimizer)
        local: torch.optim.Optimizer = optimizer.optim
        return local


ENGINE = ZeroRedundancy
