"""Whose buffers a forward begins with."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from fuzzshard.parts.option import Case, Facts, Reasons, Replicated, Tape
from fuzzshard.parts.options.ddp import DDPOption


class Buffers(DDPOption):
    """The first rank's or everyone's own, by ``broadcast_buffers`` or ``forward_sync_buffers``."""

    name, place, of_wrapper, in_every_case = "buffers", 12, True, True
    means_buffers = "local"
    texts = {
        "local": "broadcast_buffers=False",
        "forward_local": "forward_sync_buffers=False",
        "broadcast": "broadcast_buffers=True",
        "forward_broadcast": "forward_sync_buffers=True",
    }
    traits = {
        "forward_local": ("syncs_buffers",),
        "broadcast": ("syncs_buffers", "broadcasts_buffers"),
        "forward_broadcast": ("syncs_buffers", "broadcasts_buffers"),
    }
    meanings = {
        "ddp:buffers_forward_local": "forward_sync_buffers=False",
        "ddp:buffers_broadcast": "broadcast_buffers=True",
        "ddp:buffers_forward_broadcast": "forward_sync_buffers=True",
        "ddp:broadcasts": "DDP has buffers to broadcast",
    }

    @override
    def draw(self, tape: Tape, seen: Replicated) -> str:
        local = 18 if seen.has_batch_norm else 180
        return tape.weighted(
            (("local", local), ("broadcast", 3), ("forward_broadcast", 3), ("forward_local", 3))
        )

    @override
    def features(
        self, value: str, case: Case, found: Facts, *, by_replicate: bool
    ) -> Iterator[str]:
        yield from super().features(value, case, found, by_replicate=by_replicate)
        if "broadcasts_buffers" in self.traits[value] and found.batch_norms:
            yield "ddp:broadcasts"

    @override
    def excludes(self, value: str, seen: Replicated) -> Reasons:
        broadcasts = "broadcasts_buffers" in self.traits.get(value, ())
        if seen.by_replicate and broadcasts and seen.has_batch_norm:
            yield "replicate() gives DDP no buffers to broadcast", seen.LATE
