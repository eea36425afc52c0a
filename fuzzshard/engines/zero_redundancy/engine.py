"""DDP with ``ZeroRedundancyOptimizer``: a rank makes the step of its parameters, and broadcasts
them.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.engines.ddp.engine import DDP
from fuzzshard.engines.exclusion import Exclusion
from fuzzshard.engines.refusals import Refusal
from fuzzshard.engines.zero_redundancy import contract


class ZeroRedundancy(DDP):
    """DDP, whose optimizer is sharded: what a rank receives is written to ``parameter.data``."""

    name: ClassVar[str] = "zero_redundancy"
    refusals: ClassVar[tuple[Refusal, ...]] = contract.REFUSALS
    counts_versions: ClassVar[bool] = False

    @override
    @classmethod
    def not_applicable(cls, case: Case) -> Exclusion | None:
        return contract.not_applicable(case)

    @override
    def local_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        assert isinstance(optimizer, ZeroRedundancyOptimizer)
        local: torch.optim.Optimizer = optimizer.optim
        return local


ENGINE = ZeroRedundancy
