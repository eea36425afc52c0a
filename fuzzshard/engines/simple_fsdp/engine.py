"""SimpleFSDP: DTensors that modules redistribute when they read them."""

from __future__ import annotations

from typing import ClassVar

from torch import nn
from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.engines.base import Engine
from fuzzshard.engines.exclusion import Exclusion
from fuzzshard.engines.fully_shard.options import forget_compiled
from fuzzshard.engines.refusals import Refusal
from fuzzshard.engines.simple_fsdp import contract


class SimpleFSDP(Engine):
    """Every backward leaves gradients that are averaged. Loading a checkpoint writes to shards,
    which no version of a DTensor counts.
    """

    name: ClassVar[str] = "simple_fsdp"
    counts_versions: ClassVar[bool] = False
    refusals: ClassVar[tuple[Refusal, ...]] = contract.REFUSALS

    @override
    @classmethod
    def not_applicable(cls, case: Case) -> Exclusion | None:
        return contract.not_applicable(case)

    @override
    def parallelize(self, model: nn.Module) -> nn.Module:
        if self.case.compile is not None:
            forget_compiled()
        return super().parallelize(model)


ENGINE = SimpleFSDP
