"""``set_modules_to_forward_prefetch`` and ``set_modules_to_backward_prefetch``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.option import DrawingGroups, Reasons, Told
from fuzzshard.parts.options.wrap_group import GroupOption


class Prefetch(GroupOption):
    """Modules that are gathered ahead, for a group of one module."""

    place = 2

    def near(self, reachable: list[str], at: int) -> list[str]:
        """Return the modules that run next to the one at ``at``, the nearest first."""
        raise NotImplementedError

    @override
    def misfits(self, value: tuple[str, ...], told: Told) -> Reasons:
        for path in value:
            if path not in told.wrapped:
                yield f"a prefetch names {path!r}, which is not wrapped", "wrap it"
        if value and len(told.group.modules) > 1:
            yield "a list group has prefetch lists", "give them to a group of one module"

    @override
    def draw(self, drawing: DrawingGroups) -> Callable[[int, Any], Any]:
        """Draw the next one or two modules that run below the same root; rarely any other."""
        tape = drawing.tape

        def drawn(index: int, present: tuple[str, ...]) -> tuple[str, ...]:
            (module, *others) = drawing.case.wrap[index].modules
            if others or module not in drawing.order or not tape.chance(80):
                return present
            reachable = drawing.reachable(index)
            near = self.near(reachable, reachable.index(module))
            if tape.chance(10):
                near = tape.shuffled([m for m in reachable if m != module])
            return tuple(near[: 1 + tape.below(2)])

        return drawn

    @override
    def mended(self, value: tuple[str, ...], shard: int, wrapped: frozenset[str]) -> Any:
        return tuple(m for m in value if m in wrapped)


class ForwardPrefetch(Prefetch):
    """Modules to gather before a forward of this one."""

    name, prefetches = "forward_prefetch", "forward"
    extension = Choice("forward_prefetch", 20, place=3)
    meanings = {"prefetch:forward": "explicit forward prefetching"}

    @override
    def near(self, reachable: list[str], at: int) -> list[str]:
        return reachable[at + 1 :]


class BackwardPrefetch(Prefetch):
    """Modules to gather before a backward of this one, instead of the one that ran before it."""

    name, prefetches = "backward_prefetch", "backward"
    extension = Choice("backward_prefetch", 20, place=4)
    meanings = {"prefetch:backward": "explicit backward prefetching"}

    @override
    def near(self, reachable: list[str], at: int) -> list[str]:
        return reachable[:at][::-1]
