"""What a schedule trains."""

from __future__ import annotations

import dataclasses

from fuzzshard.analysis.flow import Flow, flow_of
from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.case.case import Case
from fuzzshard.strategies.freezing import still_trainable
from fuzzshard.strategies.precision import computes


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """What a schedule trains: a case without one. ``trainable`` is so after the freeze plan."""

    case: Case
    found: Inferred
    flow: Flow
    trainable: frozenset[str]

    @classmethod
    def of(cls, case: Case) -> TrainedModel:
        """Return what a schedule for ``case`` would train."""
        found = inferred(case)
        flow = flow_of(case)
        return cls(case, found, flow, still_trainable(found, case.freezes))

    def forward_targets(self, *, casts: bool) -> list[str]:
        """Return modules below the root that can be called by themselves: their groups run within
        them. ``casts``: the schedule may change the dtype of everything.
        """
        below = (path for path in self.found.modules if path)
        return [path for path in below if computes(self.case, self.found, path, casts=casts)]
