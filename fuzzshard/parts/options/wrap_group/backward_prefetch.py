"""``set_modules_to_backward_prefetch``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.options.wrap_group import Prefetch


class BackwardPrefetch(Prefetch):
    """Modules to gather before a backward of this one, instead of the one that ran before it."""

    name, prefetches = "backward_prefetch", "backward"
    extension = Choice("backward_prefetch", 20, place=4)
    meanings = {"prefetch:backward": "explicit backward prefetching"}

    @override
    def near(self, reachable: list[str], at: int) -> list[str]:
        return reachable[:at][::-1]
