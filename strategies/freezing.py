"""Freeze plans: what does not require a gradient from the start, and when that is said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from fuzzshard.analysis.flow import flow_of
from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.case.adapters import adapters
from fuzzshard.case.case import Case, Freeze
from fuzzshard.case.paths import is_within, is_within_any
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape


def freezes(tape: Tape, swarm: Swarm, case: Case) -> tuple[Freeze, ...]:
    """Return what adapters are for, and up to three frozen modules or parameters; what stays
    trainable is enough for a backward.
    """
    found = inferred(case)
    flow = flow_of(case)
    trainable, chosen = frozenset(found.parameters), list[Freeze]()
    adapted = [*_adapted(tape, swarm, case, found)]
    if any(flow.outputs("", rest := still_trainable(found, adapted))):
        trainable, chosen = rest, adapted
    for kind in ("freeze_parameter", "freeze_module", "freeze_parameter"):
        if kind not in swarm or not tape.chance(70):
            continue
        target = pick_target(tape, found, trainable, module=kind == "freeze_module")
        if target and any(flow.outputs("", rest := below(trainable, target, inside=False))):
            trainable = rest
            late = "freeze_after_wrap" in swarm and tape.chance(65)
            chosen.append(Freeze(target=target, after_wrap=late))
    return tuple(chosen)


def _adapted(tape: Tape, swarm: Swarm, case: Case, found: Inferred) -> Iterator[Freeze]:
    """What adapters are for, mostly: the modules that they adapt, or all that is no adapter."""
    around = [*adapters(case.model)]
    if not around or tape.chance(15):
        return
    trained = [path for _, *paths in around for path in paths]
    late = "freeze_after_wrap" in swarm and tape.chance(65)
    everything = tape.chance(50)
    for path in found.leaves:
        is_adapted = any(path == each.base for each in around)
        has = any(is_within(fqn, path) for fqn in found.parameters)  # and does not share them all
        if has and (is_adapted or (everything and path not in trained)):
            yield Freeze(target=path, after_wrap=late)


def still_trainable(found: Inferred, freezes: Iterable[Freeze]) -> frozenset[str]:
    """Return the parameters that none of ``freezes`` is for."""
    frozen = [freeze.target for freeze in freezes]
    return frozenset(p for p in found.parameters if not is_within_any(p, frozen))


def pick_target(tape: Tape, found: Inferred, among: Set[str], *, module: bool) -> str | None:
    """Return a parameter of ``among``, a module below the root that has one, or None."""
    options = [fqn for fqn in found.parameters if fqn in among]
    if module:
        options = [p for p in found.modules if p and any(is_within(fqn, p) for fqn in options)]
    return tape.pick(options) if options else None


def below(fqns: frozenset[str], target: str, *, inside: bool) -> frozenset[str]:
    """Return the ``fqns`` at or below ``target``, or (``inside=False``) all others."""
    return frozenset(fqn for fqn in fqns if is_within(fqn, target) == inside)
