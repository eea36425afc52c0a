"""Accesses to one memory that nothing orders: :mod:`fuzzshard.oracles.race` finds them."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.errors import UsageError
from fuzzshard.parts import oracle


class Race(oracle.Oracle):
    """Two accesses to the same memory, one of them a write, of which neither waits for the other.

    Kernels on two streams, or a kernel and the host, may come in either order; memory that the
    caching allocator hands out again is the same memory. On the CPU ``fully_shard`` runs over
    streams that exist in Python only.

    It cannot see what kernels of no operator access, numpy, or other ranks, and it takes the
    communication of one process group to be in order, as NCCL does it.
    """

    name = "race"
    place = 165
    tells_apart = True
    needs_finding = True
    rests_on = "streams"
    title = "{name}: {observed}, which nothing orders"
    basis = "one of two accesses to the same memory waits for the other if one of them writes."

    @override
    def before(self, scope: oracle.Scope) -> list[str]:
        raise UsageError(
            "no script shows two accesses in the other order", "replay the case, which names both"
        )
