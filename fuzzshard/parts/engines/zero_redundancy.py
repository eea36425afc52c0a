"""DDP with ``ZeroRedundancyOptimizer``."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from fuzzshard.parts.engine import WrapsModels
from fuzzshard.parts.engines.ddp import DistributedDataParallel
from fuzzshard.parts.op import Choice
from fuzzshard.parts.ops import NEW_CHOICES, OPS
from fuzzshard.parts.options.wrap_group import GROUP_OPTIONS


class ZeroRedundancy(DistributedDataParallel):
    """DDP with its options, and an optimizer of which every rank has a part."""

    name = "zero_redundancy"
    wraps_models: ClassVar[WrapsModels] = "no"
    title = "`ZeroRedundancyOptimizer`"
    tag = "ZeRO"
    meaning = "DDP runs with ZeroRedundancyOptimizer"
    choice = Choice(
        "zero_redundancy",
        8,
        place=3,
        # what DDP has nothing for, or parameters of several types: it would not run
        excludes=(
            *("tensor", "other_dtypes", "partial_sync", "non_root_forward"),
            *NEW_CHOICES,
            *(o.extension.name for o in GROUP_OPTIONS if o.is_policy and o.extension),
        ),
        brings=tuple(c.name for op in OPS if op.of_optimizer for c in op.choices),
    )
    has_all_states = False

    @property
    @override
    def implementation(self) -> str:
        """It trains with DDP, and shards the optimizer alone."""
        return DistributedDataParallel.name
