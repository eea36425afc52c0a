"""Experts sharded over the shard axis, under ``fully_shard``."""

from __future__ import annotations

from typing import ClassVar

import torch
from typing_extensions import override

from fuzzshard.analysis.experts import has_experts, weights
from fuzzshard.engines.fully_shard.engine import FullyShard
from fuzzshard.engines.fully_shard.state import GroupState


class ExpertParallel(FullyShard):
    """What a rank holds between ops of its experts is not what ``fully_shard`` alone holds."""

    name: ClassVar[str] = "expert_parallel"
    predicts_groups = False

    @override
    def unreduced_gradients(self) -> dict[str, torch.Tensor | None]:
        """Leave out those of experts, which are of all rows that came to this rank."""
        experts = {*weights(self.case).values()}
        held = super().unreduced_gradients().items()
        return {fqn: gradient for fqn, gradient in held if fqn not in experts}

    @override
    def group_states(self) -> dict[int, GroupState]:
        """Leave out groups with experts, of which a rank has a part only."""
        held = super().group_states().items()
        return {i: state for i, state in held if not has_experts(self.case, self.case.wrap[i])}


ENGINE = ExpertParallel
