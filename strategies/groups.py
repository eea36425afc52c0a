"""Options of wrap groups."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

from msgspec.structs import replace

from fuzzshard.analysis.communication import Told
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.analysis.schedule_state import root_groups
from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.parts.engines import specs
from fuzzshard.parts.options.wrap_group import GROUP_OPTIONS
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_LATE = sorted(
    (option for option in GROUP_OPTIONS if option.extension and option.name != "precision"),
    key=lambda option: option.place,
)


@dataclasses.dataclass(frozen=True)
class DrawingGroups:
    """The wrap groups that an option is drawn for; ``case`` has the options before it."""

    tape: Tape
    case: Case
    found: Inferred
    cuda: bool

    def told(self, wrap: Sequence[WrapGroup], index: int) -> Told:
        """Return one group of a plan as its options see it."""
        return Told(replace(self.case, wrap=tuple(wrap)), self.found, index)

    @property
    def applies_groups(self) -> bool:
        """Whether some engine of the case uses the options of wrap groups."""
        return any(spec.applies_groups for spec in specs(self.case.engines))

    @functools.cached_property
    def roots(self) -> tuple[int, ...]:
        """The FSDP root of each group."""
        return root_groups(self.case)

    @functools.cached_property
    def order(self) -> dict[str, int]:
        """The wrapped modules that are called, in their order, with the FSDP roots of their
        groups.
        """
        pairs = zip(self.case.wrap, self.roots, strict=True)
        root = {module: root for group, root in pairs for module in group.modules}
        found = self.found
        return {
            path: root[path] for path in found.modules if path in root and path in found.called
        }

    def reachable(self, index: int) -> list[str]:
        """Return those below the FSDP root of a group."""
        return [module for module, root in self.order.items() if root == self.roots[index]]


def group_options(
    tape: Tape, swarm: Swarm, case: Case, found: Inferred, *, cuda: bool
) -> tuple[WrapGroup, ...]:
    """Return the wrap plan of ``case`` with further options, those of one place group by group."""
    for _, options in itertools.groupby(_LATE, key=lambda option: option.place):
        drawing = DrawingGroups(tape, case, found, cuda)
        drawn = {
            option.name: option.draw(drawing)
            for option in options
            if option.extension and option.extension.name in swarm
        }
        groups = (
            replace(g, **{name: draw(i, getattr(g, name)) for name, draw in drawn.items()})
            for i, g in enumerate(case.wrap)
        )
        case = replace(case, wrap=tuple(groups))
    return case.wrap
