"""Parameters registered under two names."""

from __future__ import annotations

import itertools

from fuzzshard.case.case import Tie, WrapGroup
from fuzzshard.case.facts import Facts, enclosing
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_ACROSS_GROUPS = 8
"""Percent: ``fully_shard`` refuses a parameter that two groups would manage."""


def ties(tape: Tape, swarm: Swarm, found: Facts, wrap: tuple[WrapGroup, ...]) -> tuple[Tie, ...]:
    """Up to two pairs of parameters of one shape, mostly within a wrap group. ``found``: without ties."""
    if "tie" not in swarm:
        return ()
    groups = {module: i for i, group in enumerate(wrap) for module in group.modules}
    within: list[Tie] = []
    across: list[Tie] = []
    for source, parameter in itertools.combinations(found.parameters, 2):
        if found.parameters[source] == found.parameters[parameter]:
            above = [enclosing(fqn, groups) for fqn in (source, parameter)]
            first, second = (None if path is None else groups[path] for path in above)
            (within if first == second else across).append(Tie(parameter=parameter, source=source))
    chosen: list[Tie] = []
    for _ in range(1 + tape.chance(30)):
        taken = {fqn for tie in chosen for fqn in (tie.parameter, tie.source)}
        options = across if across and tape.chance(_ACROSS_GROUPS) else within
        options = [tie for tie in options if taken.isdisjoint((tie.parameter, tie.source))]
        if options:
            chosen.append(tape.pick(options))
    return tuple(chosen)
