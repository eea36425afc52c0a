"""Which rank waits in which collective, and where its peers are instead: a hang in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from fuzzshard.analysis.schedule_state import follow
from fuzzshard.case.case import Case, Mesh
from fuzzshard.case.phrases import span
from fuzzshard.world.messages import Joined, Position

SHOWN = 12
"""The latest collectives of a rank that are kept with a finding."""


def describe_hang(case: Case, positions: Mapping[int, Position]) -> str:
    """Return a clause for every rank that answered, one that waits first.

    Like ``rank 0 waits in all_gather 7 of ranks 0-1 (shard) in op 1 (forward); rank 1 has not
    joined it and is in no collective in op 1 (forward)``. Numbers count the collectives of a
    process group, which lives as long as its ranks do, and are those of the flight recorder.
    """
    order = sorted(positions, key=lambda rank: (waits_in(positions[rank]) is None, rank))
    clauses, awaited = [], None
    for rank in order:
        position = positions[rank]
        own = waits_in(position)
        relation = _relation(awaited, rank, position) if awaited is not None else ""
        if own is None or relation == _SAME:
            place = "" if relation == _SAME else "is in no collective"
        else:
            meshes = (at.case.mesh for at in follow(case) if at.index == position.op)
            place = f"waits in {_named(next(meshes, case.mesh), own)}"
        words = " and ".join(filter(None, (relation, place)))
        clauses.append(f"rank {rank} {words}{_op(case, position.op)}")
        awaited = awaited or own
    return "; ".join(clauses)


_SAME = "waits in it too"


def waits_in(position: Position) -> Joined | None:
    """Return the collective that keeps a rank: the oldest that has not ended."""
    return next((joined for joined in position.joined if not joined.done), None)


def latest(position: Position) -> str:
    """Return the latest collectives of a rank, a line each."""
    return "\n".join(map(_line, position.joined[-SHOWN:]))


def _line(joined: Joined) -> str:
    state = "done" if joined.done else "open"
    return f"{state}  {joined.kind} {joined.number} of ranks {span(joined.ranks)}: {joined.sizes}"


def _relation(awaited: Joined, rank: int, position: Position) -> str:
    """Return what a rank has to do with the collective that another one waits in."""
    if rank not in awaited.ranks:
        return ""
    of_group = {
        joined.number: joined for joined in position.joined if joined.ranks == awaited.ranks
    }
    own = of_group.get(awaited.number)
    if own is None:  # what was long ago is in the ring no more
        return "has left it" if awaited.number < max(of_group, default=0) else "has not joined it"
    if own.kind != awaited.kind:
        return f"has joined {own.kind} in its place"
    return "has left it" if own.done else _SAME


def _named(mesh: Mesh, joined: Joined) -> str:
    axes = _axes(mesh, joined.ranks)
    return (
        f"{joined.kind} {joined.number} of ranks "
        f"{span(joined.ranks)}{f' ({axes})' if axes else ''}"
    )


def _op(case: Case, op: int) -> str:
    return f" in op {op} ({case.schedule[op].tag})" if 0 <= op < len(case.schedule) else ""


def _axes(mesh: Mesh, ranks: tuple[int, ...]) -> str:
    """Return the axes of the mesh along which these ranks lie; of axes that have the same ranks
    each is named.
    """
    shape = [*mesh.axes.items()]
    places = sorted(mesh.ranks.index(rank) for rank in ranks if rank in mesh.ranks)
    found = []
    for at, (axis, size) in enumerate(shape):
        stride = math.prod(length for _, length in shape[at + 1 :])
        if len(ranks) == size and all(b - a == stride for a, b in itertools.pairwise(places)):
            found.append(axis)
    return " or ".join(found)
