"""``set_modules_to_forward_prefetch``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.options.wrap_group import Prefetch


class ForwardPrefetch(Prefetch):
    """Modules to gather before a forward of this one."""

    name, prefetches = "forward_prefetch", "forward"
    extension = Choice("forward_prefetch", 20, place=3)
    meanings = {"prefetch:forward": "explicit forward prefetching"}

    @override
    def near(self, reachable: list[str], at: int) -> list[str]:
        return reachable[at + 1 :]
