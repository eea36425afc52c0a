"""What the options of DDP ask about: which parameters every backward comes to, and by what
graph.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping

from fuzzshard.case.autograd import Tape, Unwatched, reached
from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import modules_below
from fuzzshard.case.paths import is_within
from fuzzshard.case.schedule_state import ScheduleState, follow


@functools.lru_cache(maxsize=64)
def arrivals(case: Case) -> Mapping[int, frozenset[str]]:
    """The parameters that each backward brings a gradient, by the index of its op."""
    return {index: arrived for index, (arrived, _) in _backwards(case).items()}


def replicated(case: Case, *, by_replicate: bool) -> frozenset[str]:
    """The parameters that DDP synchronises: those not ignored that require a gradient at
    construction.

    ``replicate`` is constructed by the first forward.
    """
    if by_replicate:
        states = (at.frozen for at in follow(case) if at.op.call)
        frozen = next(states, ScheduleState(case).frozen)
    else:
        frozen = {
            fqn
            for fqn in facts(case).parameters
            if any(is_within(fqn, f.target) for f in case.freezes if not f.after_wrap)
        }
    return (
        frozenset(facts(case).parameters)
        - frozen
        - ignored_parameters(case, by_replicate=by_replicate)
    )


def ignored_modules(case: Case, *, by_replicate: bool) -> tuple[str, ...]:
    """The modules that ``replicate`` is to ignore; DDP itself has no such argument."""
    asked = by_replicate and case.ddp.ignored_modules
    return tuple(path for path in case.ignored if asked and path in facts(case).modules)


def ignored_parameters(case: Case, *, by_replicate: bool) -> frozenset[str]:
    """The parameters of these modules, which nobody synchronises but the user."""
    ignored = ignored_modules(case, by_replicate=by_replicate)
    modules = {module for path in ignored for module in modules_below(case.model, path)}
    names = {tie.parameter: tie.source for tie in case.ties}
    within = (
        fqn for fqn in (*facts(case).parameters, *names) if any(is_within(fqn, m) for m in modules)
    )
    return frozenset(names.get(fqn, fqn) for fqn in within)


def graph_is_static(case: Case) -> bool:
    """Whether every backward is of as many forwards, through the same calls to the same
    parameters.
    """
    return len(set(_backwards(case).values())) <= 1


@functools.lru_cache(maxsize=64)
def _backwards(case: Case) -> Mapping[int, tuple[frozenset[str], Hashable]]:
    tape = Tape(case, facts(case), Unwatched())
    found: dict[int, tuple[frozenset[str], Hashable]] = {}
    for at in follow(case):
        nodes = reached(tape.follow(at))
        if at.op.takes:
            graph = frozenset(fqn for node in nodes for fqn in node.parameters)
            calls = tuple((call.target, call.outputs, modules) for _, call, modules, _ in at.taken)
            found[at.index] = (graph - at.frozen, (calls, frozenset(at.frozen), graph))
    return found
