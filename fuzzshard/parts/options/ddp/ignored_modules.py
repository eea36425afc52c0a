"""``ignored_modules`` of ``replicate``."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from fuzzshard.parts.option import Case, Facts, Replicated, Tape
from fuzzshard.parts.options.ddp import DDPOption


class IgnoredModules(DDPOption):
    """``replicate`` is given the modules that the case ignores."""

    name, place, in_every_case = "ignored_modules", 13, True
    traits = {True: ("ignores_modules",)}
    meanings = {"ddp:ignored_modules": "replicate() is told to ignore modules"}

    @override
    def draw(self, tape: Tape, seen: Replicated) -> bool:
        return seen.may_ignore and tape.chance(70)

    @override
    def features(
        self, value: bool, case: Case, found: Facts, *, by_replicate: bool
    ) -> Iterator[str]:
        if by_replicate and any(path in found.modules for path in case.ignored):
            yield from super().features(value, case, found, by_replicate=by_replicate)
