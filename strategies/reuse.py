"""Parameters registered under two names."""

from __future__ import annotations

import itertools

from msgspec.structs import replace

from fuzzshard.case.case import Case, Tie
from fuzzshard.case.facts import facts
from fuzzshard.case.groups import uses_outside_groups
from fuzzshard.case.paths import enclosing
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_ACROSS_GROUPS = 16
"""Percent: ``fully_shard`` refuses a parameter that two groups would manage, if the root is
wrapped.
"""


def ties(tape: Tape, swarm: Swarm, case: Case) -> tuple[Tie, ...]:
    """Up to two pairs of parameters of one shape, mostly within a wrap group, for a case without
    ties.
    """
    if "tie" not in swarm:
        return ()
    within, across = _options(case)
    chosen: list[Tie] = []
    for _ in range(1 + tape.chance(30)):
        taken = {fqn for tie in chosen for fqn in (tie.parameter, tie.source)}
        options = across if across and tape.chance(_ACROSS_GROUPS) else within
        options = [tie for tie in options if taken.isdisjoint((tie.parameter, tie.source))]
        if options:
            chosen.append(tape.pick(options))
    tied = replace(case, ties=tuple(chosen))
    sources = {tie.source for tie in chosen if tie in across}
    outside = {fqn for _, fqn in uses_outside_groups(tied, facts(tied), "")}
    return tied.ties if outside <= sources else ()


def _options(case: Case) -> tuple[list[Tie], list[Tie]]:
    """All possible ties within a wrap group, and across groups where torch refuses them in
    words.
    """
    found = facts(case)
    groups = {module: i for i, group in enumerate(case.wrap) for module in group.modules}
    within: list[Tie] = []
    across: list[Tie] = []
    for source, parameter in itertools.combinations(found.parameters, 2):
        if found.parameters[source] == found.parameters[parameter]:
            above = [enclosing(fqn, groups) for fqn in (source, parameter)]
            first, second = (None if path is None else groups[path] for path in above)
            if first == second or "" in groups:
                (within if first == second else across).append(
                    Tie(parameter=parameter, source=source)
                )
    return within, across
