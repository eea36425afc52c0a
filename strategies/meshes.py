"""Meshes: 1D of any size the world has, and the 2D mesh (replicate, shard) of HSDP."""

from __future__ import annotations

from fuzzshard.case.case import Mesh
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_WEIGHTS = {2: 40, 1: 7, 3: 10, 4: 30}
_WEIGHT_OF_ALL_LARGER = 12


def mesh(tape: Tape, swarm: Swarm, world_size: int, *, exact: bool) -> Mesh:
    """A mesh of at most ``world_size`` ranks; ``exact`` asks for powers of two, where means are exact."""
    sizes = [(size, weight) for size, weight in _WEIGHTS.items() if size <= world_size]
    larger = range(5, world_size + 1)
    sizes += [(size, max(1, _WEIGHT_OF_ALL_LARGER // len(larger))) for size in larger]
    if exact:
        sizes = [(size, weight) for size, weight in sizes if size & (size - 1) == 0]
    if "hsdp" in swarm and tape.chance(65):
        sizes = [(size, weight if size < 4 else 3 * weight) for size, weight in sizes]
        size = tape.weighted(sizes)
        return tape.weighted(_two_dimensional(size))
    return Mesh(shard=tape.weighted(sizes))


def _two_dimensional(size: int) -> list[tuple[Mesh, int]]:
    shapes = [(Mesh(replicate=n, shard=size // n), 6) for n in range(2, size) if size % n == 0]
    return [*shapes, (Mesh(replicate=1, shard=size), 1), (Mesh(replicate=size, shard=1), 1)]
