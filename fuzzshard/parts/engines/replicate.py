"""``replicate``: composable DDP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.parts.engine import WrapsModels
from fuzzshard.parts.engines.ddp import DistributedDataParallel, option_features
from fuzzshard.parts.op import Choice

if TYPE_CHECKING:
    from fuzzshard.case.case import Case
    from fuzzshard.case.facts import Facts


class Replicate(DistributedDataParallel):
    """DDP without a wrapper, and with its options."""

    name = "replicate"
    title = "`replicate`"
    tag = "replicate"
    meaning = "composable DDP runs"
    wrapper = ""
    wraps_models: ClassVar[WrapsModels] = "if asked"
    choice = Choice("replicate", 23, place=2)
    ignores_modules = True
    outlives_run = "some parameters of some cases do, on torch 2.13 as it is; why is not known"

    @property
    @override
    def implementation(self) -> str:
        """torch/distributed/_composable/replicate.py wraps DDP."""
        return DistributedDataParallel.name

    @override
    def features(self, case: Case, found: Facts) -> Iterator[str]:
        return option_features(case, found, by_replicate=True)
