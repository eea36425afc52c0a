"""``DistributedDataParallel``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts.engine import EngineSpec, WrapsModels
from fuzzshard.parts.option import meanings_of
from fuzzshard.parts.options.ddp import DDP_OPTIONS
from fuzzshard.parts.part import off_default

if TYPE_CHECKING:
    from fuzzshard.case.case import Case
    from fuzzshard.case.facts import Facts


def option_features(case: Case, found: Facts, *, by_replicate: bool) -> Iterator[str]:
    """Yield the features of all options."""
    off = {*off_default(case.ddp)}
    for option, value in case.ddp.told():
        if option.name in off:
            yield from option.features(value, case, found, by_replicate=by_replicate)


class DistributedDataParallel(EngineSpec):
    """Replicates the model, whatever its wrap groups are."""

    name = "ddp"
    title = "`DistributedDataParallel`"
    tag = "DDP"
    meaning = "DistributedDataParallel runs"
    options = "ddp"
    meanings = meanings_of(DDP_OPTIONS)
    wrapper = "DistributedDataParallel"
    differs_in = ("buffers",)
    differentiates_twice = True
    wraps_models: ClassVar[WrapsModels] = "always"

    @override
    def moves_inputs(self, target: str, wrapped: frozenset[str]) -> bool:
        return not target

    @override
    def features(self, case: Case, found: Facts) -> Iterator[str]:
        return option_features(case, found, by_replicate=False)

    @override
    def check(self, case: Case, found: Facts) -> None:
        others = set(case.engines) - {DistributedDataParallel.name}
        if case.ddp.does("broadcasts_buffers") and others and found.batch_norms:
            raise InvalidCase(
                "DDP broadcasts buffers, which the other engines do not, and there is one "
                "reference",
                'run the engine ddp alone, or set ddp.buffers to "local"',
            )
