"""Gradients that wait for their reduction, over several backwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fuzzshard.case.case import Case
from fuzzshard.case.dtype_lookups import DtypeLookups
from fuzzshard.case.facts import Facts
from fuzzshard.case.sync_flags import UNMANAGED, SyncFlags


class HeldGradients:
    """Which parameters hold gradients that have not been averaged over the whole mesh."""

    def __init__(self, case: Case, found: Facts) -> None:
        self.flags, self.found, self.lookups = SyncFlags(case), found, DtypeLookups(case, found)
        self.unreduced: dict[int | None, set[str]] = {}
        self.partial: dict[int | None, set[str]] = {}
        """Reduced over the shards of one replica only: one tensor for the whole group."""

    def backward(self, arrived: set[str], runs: Mapping[int, int]) -> Iterator[str]:
        """A backward that brings gradients for ``arrived``, by so many ``runs`` of each group."""
        for owner, reduces in self.flags.reduce.items():
            news = {fqn for fqn in arrived if self.found.owners[fqn] == owner}
            if not reduces:
                self.unreduced.setdefault(owner, set()).update(news)
                continue
            held = self.unreduced.pop(owner, set())
            if owner in self.lookups.in_vain and held | news:
                yield "precision:frozen_at_lookup"
            if held - news and self.flags.synced(owner):
                yield "graph:sync_missed"
            partial = self.partial.pop(owner, None)
            if partial is not None and partial != held | news:
                yield "graph:partial_reduction_differs"
            if not self.flags.synced(owner):
                self.partial[owner] = partial or held | news
                if owner is not UNMANAGED and runs[owner] > 1:
                    yield "graph:partial_reduction_differs"
