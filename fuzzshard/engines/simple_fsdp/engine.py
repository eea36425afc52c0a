"""SimpleFSDP: DTensors that modules redistribute when they read them."""

from __future__ import annotations

from typing import ClassVar

from torch import nn
from typing_extensions import override

from fuzzshard.engines.base import Engine
from fuzzshard.engines.fully_shard.options import forget_compiled
from fuzzshard.engines.optimizer_state import NO_SAVED_STATE
from fuzzshard.engines.refusals import Refusal


class SimpleFSDP(Engine):
    """Every backward leaves gradients that are averaged. Loading a checkpoint writes to shards,
    which no version of a DTensor counts.
    """

    name: ClassVar[str] = "simple_fsdp"
    counts_versions: ClassVar[bool] = False
    refusals: ClassVar[tuple[Refusal, ...]] = (NO_SAVED_STATE,)

    @override
    def parallelize(self, model: nn.Module) -> nn.Module:
        if self.case.compile is not None:
            forget_compiled()
        return super().parallelize(model)


ENGINE = SimpleFSDP
