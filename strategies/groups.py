"""Options of wrap groups: offloading, explicit prefetching, the dim to shard."""

from __future__ import annotations

from msgspec.structs import replace

from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.communication import misfit
from fuzzshard.case.edit import with_item
from fuzzshard.case.facts import Facts
from fuzzshard.case.groups import root_groups
from fuzzshard.case.placements import shard_dim
from fuzzshard.case.units import parameter_groups
from fuzzshard.parts.options.communication import WORDS
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape


def group_options(
    tape: Tape, swarm: Swarm, case: Case, found: Facts, *, cuda: bool
) -> tuple[WrapGroup, ...]:
    """The wrap plan of ``case`` with further options."""
    groups = list(case.wrap)
    if "offload" in swarm:
        kind = "pinned" if cuda and tape.chance(50) else "unpinned"
        most = tape.chance(80)
        groups = [replace(g, offload=kind) if most or tape.chance(50) else g for g in groups]
    if "shard_dim" in swarm and not case.tensor_parallel:
        groups = [
            _with_shard_dim(tape, case, found, index, group) for index, group in enumerate(groups)
        ]
    groups = _with_prefetches(tape, swarm, case, found, groups)
    if "communication" in swarm and groups:
        alike = tape.chance(50)
        options = _communication(tape)
        groups = [
            replace(g, communication=options if alike else _communication(tape)) for g in groups
        ]
        for word in WORDS.values():
            if word.for_all and tape.chance(word.for_all):
                groups = [_with_word(g, word.name) for g in groups]
        groups = _with_roots_that_share(tape, case, groups)
        groups = [
            _fitting(tape, replace(case, wrap=tuple(groups)), found, i) for i in range(len(groups))
        ]
    return tuple(groups)


_ANYWHERE = tuple(
    word.name
    for word in sorted(WORDS.values(), key=lambda word: word.anywhere or 0)
    if word.anywhere is not None
)


def _with_word(group: WrapGroup, word: str) -> WrapGroup:
    return replace(group, communication=(*group.communication, word))


def _communication(tape: Tape) -> tuple[str, ...]:
    """One option, or any of them."""
    return tuple(tape.some(_ANYWHERE, 30)) if tape.chance(50) else (tape.pick(_ANYWHERE),)


def _with_roots_that_share(tape: Tape, case: Case, groups: list[WrapGroup]) -> list[WrapGroup]:
    """Several FSDP roots may share their streams: ``share_comm_ctx`` is for them."""
    roots = set(root_groups(case))
    for word in WORDS.values() if len(roots) > 1 else ():
        if word.for_roots and tape.chance(word.for_roots):
            groups = [_with_word(g, word.name) if i in roots else g for i, g in enumerate(groups)]
    return groups


def _fitting(tape: Tape, case: Case, found: Facts, index: int) -> WrapGroup:
    """The group at ``index`` without what does not fit it, and often with what few groups can
    have.
    """
    group = case.wrap[index]
    for word in WORDS.values():
        if (
            word.where_it_fits
            and misfit(case, found, index, word.name) is None
            and tape.chance(word.where_it_fits)
        ):
            group = _with_word(group, word.name)
    kept: tuple[str, ...] = ()
    for option in group.communication:
        changed = replace(group, communication=(*kept, option))
        told = replace(case, wrap=with_item(case.wrap, index, changed))
        if all(misfit(told, found, index, each) is None for each in changed.communication):
            kept = changed.communication
    return replace(group, communication=kept)


def _with_shard_dim(
    tape: Tape, case: Case, found: Facts, index: int, group: WrapGroup
) -> WrapGroup:
    """``fully_shard`` shards along a dim other than the first only where that is even."""
    changed = replace(group, shard_dim=tape.pick(("last", "largest")))
    shapes = [
        found.parameters[fqn]
        for fqn, indices in parameter_groups(case).items()
        if index in indices
    ]
    dims = [(shard_dim(changed, shape), shape) for shape in shapes]
    even = all(not dim or shape[dim] % case.mesh.shard == 0 for dim, shape in dims)
    return changed if even else group


def _with_prefetches(
    tape: Tape, swarm: Swarm, case: Case, found: Facts, groups: list[WrapGroup]
) -> list[WrapGroup]:
    """Prefetches of the next one or two modules that run below the same root; rarely of any
    other.
    """
    kinds = [kind for kind in ("forward_prefetch", "backward_prefetch") if kind in swarm]
    if not kinds:
        return groups
    roots = dict(zip((g.modules for g in groups), root_groups(case), strict=True))
    owner = {module: group for group in groups for module in group.modules}
    order = [path for path in found.modules if path in owner and path in found.called]
    changed = []
    for group in groups:
        (module, *others) = group.modules
        lists: dict[str, tuple[str, ...]] = {}
        for kind in kinds:
            if others or module not in order or not tape.chance(80):
                continue
            reachable = [m for m in order if roots[owner[m].modules] == roots[group.modules]]
            at = reachable.index(module)
            near = reachable[at + 1 :] if kind == "forward_prefetch" else reachable[:at][::-1]
            if tape.chance(10):
                near = tape.shuffled([m for m in reachable if m != module])
            lists[kind] = tuple(near[: 1 + tape.below(2)])
        changed.append(replace(group, **lists))
    return changed
