"""Flags of the synchronisation and resharding of gradients, for the backwards before a step's last one."""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.case.schedule import Flag, SetFlag
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_FLAGS: dict[str, Flag] = {
    "no_sync": "requires_gradient_sync",
    "partial_sync": "requires_gradient_sync",
    "no_all_reduce": "requires_all_reduce",
    "not_last_backward": "is_last_backward",
    "no_reshard": "reshard_after_backward",
}


def draw_flags(tape: Tape, swarm: Swarm, case: Case) -> list[SetFlag]:
    """What the rounds before the last one switch off; each flag of each module once."""
    chosen: dict[tuple[Flag, str], SetFlag] = {}
    for choice, flag in _FLAGS.items():
        rare = choice == "no_all_reduce" and case.mesh.replicate is None
        if choice in swarm and tape.chance(25 if rare else 60):
            partial = choice == "partial_sync" or (choice != "no_sync" and tape.chance(20))
            target, recurse = flag_target(tape, case, partial=partial)
            op = SetFlag(flag=flag, value=False, target=target, recurse=recurse)
            chosen.setdefault((flag, target), op)
    return list(chosen.values())


def flag_target(tape: Tape, case: Case, *, partial: bool) -> tuple[str, bool]:
    """Which module a flag is set on, and whether on those below it too: ``partial`` spares some groups."""
    wrapped = [module for group in case.wrap for module in group.modules]
    if not partial or not wrapped:
        return "", True
    return tape.pick([module for module in wrapped if module] or wrapped), tape.chance(30)


def undone(flag: SetFlag) -> SetFlag:
    """The op that switches a flag on again."""
    return SetFlag(flag=flag.flag, value=True, target=flag.target, recurse=flag.recurse)
