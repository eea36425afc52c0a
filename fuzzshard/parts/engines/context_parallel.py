"""Context parallelism: attention runs over ranks that each have a part of the positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from typing_extensions import override

from fuzzshard.parts.engines.fully_shard import FullyShard
from fuzzshard.parts.op import Choice
from fuzzshard.parts.option import meanings_of
from fuzzshard.parts.options.context_parallel import CONTEXT_PARALLEL_OPTIONS

if TYPE_CHECKING:
    from fuzzshard.case.case import Case
    from fuzzshard.case.facts import Facts


class ContextParallel(FullyShard):
    """Ranks of the shard axis exchange rows for positions before attention, and back behind it.

    In between torch's own ring attention runs, as torchtitan applies it. Results of parts of the
    keys are put together by differences of them, which round also where a softmax has one
    element that counts and is exact.
    """

    name = "context_parallel"
    title = "context parallelism with `fully_shard`"
    tag = "context parallel"
    nicknames = ("cp", "ring attention")
    meaning = "attention runs over ranks that each have a part of the positions"
    options = "context_parallel"
    meanings = meanings_of(CONTEXT_PARALLEL_OPTIONS)
    choice = Choice("context_parallel", 8, place=103, excludes=("tensor", "compile"))
    shards_positions = True
    rounds_otherwise = True
    wraps_models = "no"
    wraps_blocks = False

    @property
    @override
    def implementation(self) -> str:
        """It calls ``fully_shard`` for every group."""
        return FullyShard.name

    @override
    def features(self, case: Case, found: Facts) -> Iterator[str]:
        for option, value in case.context_parallel.told():
            yield from option.named(value)
