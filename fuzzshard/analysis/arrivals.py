"""What the options of DDP ask about: which parameters every backward comes to, and by what
graph.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Mapping

from fuzzshard.analysis.autograd import AutogradGraph, reached
from fuzzshard.analysis.inferred import inferred, updates_buffers
from fuzzshard.analysis.schedule_state import ScheduleState, follow
from fuzzshard.case.case import Case
from fuzzshard.case.graph import modules_below
from fuzzshard.case.paths import is_within_any
from fuzzshard.parts.engines import specs


@functools.lru_cache(maxsize=64)
def arrivals(case: Case) -> Mapping[int, frozenset[str]]:
    """Return the parameters that each backward brings a gradient, by the index of its op."""
    return {index: arrived for index, (arrived, _) in _backwards(case).items()}


@dataclasses.dataclass(frozen=True)
class Replicated:
    """A finished case as options of DDP see it, under DDP itself or ``by_replicate``."""

    case: Case
    by_replicate: bool

    @functools.cached_property
    def trained(self) -> frozenset[str]:
        """The parameters that DDP synchronises: those not ignored that require a gradient at
        construction.

        ``replicate`` is constructed by the first forward.
        """
        case, parameters = self.case, inferred(self.case).parameters
        if self.by_replicate:
            states = (at.frozen for at in follow(case) if at.op.call)
            frozen = next(states, ScheduleState(case).frozen)
        else:
            early = [f.target for f in case.freezes if not f.after_wrap]
            frozen = {fqn for fqn in parameters if is_within_any(fqn, early)}
        ignored = ignored_parameters(case, by_replicate=self.by_replicate)
        return frozenset(parameters) - frozen - ignored

    @functools.cached_property
    def arrived(self) -> frozenset[frozenset[str]]:
        """For each backward the trained parameters that it brings a gradient, each set once."""
        return frozenset(some & self.trained for some in arrivals(self.case).values())

    @property
    def graph_is_static(self) -> bool:
        """Whether every backward is of as many forwards, through the same calls to the same
        parameters.
        """
        return len(set(_backwards(self.case).values())) <= 1

    @property
    def has_unsynced(self) -> bool:
        """Whether something runs within ``no_sync()``."""
        return any(not at.synced for at in follow(self.case))

    @property
    def updates_buffers(self) -> bool:
        """Whether a forward changes buffers."""
        return updates_buffers(self.case, "")

    @property
    def may_ignore(self) -> bool:
        """Whether an engine could be told of a module that the case ignores."""
        return any(spec.ignores_modules for spec in specs(self.case.engines)) and any(
            path in inferred(self.case).modules for path in self.case.ignored
        )


def ignored_modules(case: Case, *, by_replicate: bool) -> tuple[str, ...]:
    """Return the modules that ``replicate`` is to ignore; DDP itself has no such argument."""
    asked = by_replicate and case.ddp.ignored_modules
    return tuple(path for path in case.ignored if asked and path in inferred(case).modules)


def ignored_parameters(case: Case, *, by_replicate: bool) -> frozenset[str]:
    """Return the parameters of these modules, which nobody synchronises but the user."""
    ignored = ignored_modules(case, by_replicate=by_replicate)
    modules = {module for path in ignored for module in modules_below(case.model, path)}
    names = case.tied
    within = (fqn for fqn in (*inferred(case).parameters, *names) if is_within_any(fqn, modules))
    return frozenset(names.get(fqn, fqn) for fqn in within)


@functools.lru_cache(maxsize=64)
def _backwards(case: Case) -> Mapping[int, tuple[frozenset[str], Hashable]]:
    autograd = AutogradGraph(case, inferred(case))
    found: dict[int, tuple[frozenset[str], Hashable]] = {}
    for at in follow(case):
        nodes = reached(autograd.follow(at))
        if at.op.takes:
            graph = frozenset(fqn for node in nodes for fqn in node.parameters)
            calls = tuple((each.call.target, each.call.outputs, each.modules) for each in at.taken)
            found[at.index] = (graph - at.frozen, (calls, frozenset(at.frozen), graph))
    return found
