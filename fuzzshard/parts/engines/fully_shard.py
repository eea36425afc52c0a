"""``fully_shard`` (FSDP2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.parts.engine import EngineSpec, WrapsModels

if TYPE_CHECKING:
    from fuzzshard.case.case import Case


class FullyShard(EngineSpec):
    """Every wrap group is a call of it."""

    name = "fully_shard"
    title = "`fully_shard`"
    tag = "FSDP2"
    nicknames = ("fsdp", "hsdp")
    meaning = "fully_shard runs"
    applies_groups = True
    differs_in = ("input",)
    wraps_models: ClassVar[WrapsModels] = "always"
    wraps_blocks = True

    @override
    def moves_inputs(self, target: str, wrapped: frozenset[str]) -> bool:
        return target in wrapped

    @override
    def needs_cuda(self, case: Case) -> str | None:
        return next(filter(None, (group.needs_cuda() for group in case.wrap)), None)
