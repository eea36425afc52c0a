"""Meshes: 1D of any size the world has, the 2D mesh (replicate, shard) of HSDP, and the axes
around them.
"""

from __future__ import annotations

from msgspec.structs import replace

from fuzzshard.case.case import WAYS, Mesh
from fuzzshard.strategies.swarm import Swarm, is_cut, shards_experts
from fuzzshard.strategies.tape import Tape

_WEIGHTS = {2: 40, 1: 2, 3: 10, 4: 30}
_WEIGHT_OF_ALL_LARGER = 12
_MADE = 8
"""Percent of the meshes that are made in another way."""
_ON_AXES_OF_ONE = 50
"""Percent of the cases of HSDP for which there are no two axes of two ranks. They cost half a case
more, for another communicator.
"""


def mesh(tape: Tape, swarm: Swarm, world_size: int, *, exact: bool) -> Mesh:
    """Return a mesh of at most ``world_size`` ranks; ``exact`` asks for powers of two, where means
    are exact.
    """
    pipeline = 2 if "pipeline" in swarm and world_size >= 4 else None
    if is_cut(swarm):
        pipeline = 2 if world_size >= 2 and tape.chance(50) else 1
    left = world_size // (pipeline or 1)
    tensor = _tensor_axis(tape, swarm, left)
    ranks = _data_axes(tape, swarm, left // (tensor or 1), exact=exact)
    if pipeline is None and "pipeline" in swarm and tape.chance(30):
        pipeline = 1
    return replace(ranks, tensor=tensor, pipeline=pipeline)


def made(tape: Tape, mesh: Mesh) -> Mesh:
    """Return the same, maybe made in another way, which is of no account for anything else."""
    return replace(mesh, made=tape.pick([*WAYS])) if tape.chance(_MADE) else mesh


def _tensor_axis(tape: Tape, swarm: Swarm, world_size: int) -> int | None:
    """Mostly such that a data axis of two ranks is left."""
    if "tensor" not in swarm or world_size < 2 or (world_size < 4 and not tape.chance(75)):
        return None
    sizes = [(2, 8)] + [(4, 1)] * (world_size >= 4) + [(4, 2)] * (world_size >= 8) + [(1, 1)]
    return tape.weighted(sizes)


def _data_axes(tape: Tape, swarm: Swarm, world_size: int, *, exact: bool) -> Mesh:
    sizes = [(size, weight) for size, weight in _WEIGHTS.items() if size <= world_size]
    larger = range(5, world_size + 1)
    sizes += [(size, max(1, _WEIGHT_OF_ALL_LARGER // len(larger))) for size in larger]
    if exact:
        sizes = [(size, weight) for size, weight in sizes if size & (size - 1) == 0]
    if "divide_factor" in swarm and tape.chance(25):
        sizes = [(1, 1)]
    if shards_experts(swarm):
        shapes = _two_dimensional(tape.weighted(sizes))
        return tape.weighted([(shape, 8 if shape.shard > 1 else w) for shape, w in shapes])
    if "hsdp" in swarm and tape.chance(65 if world_size >= 4 else _ON_AXES_OF_ONE):
        sizes = [(size, weight if size < 4 else 3 * weight) for size, weight in sizes]
        if "divide_factor" in swarm and world_size > 1 and tape.chance(25):
            return Mesh(replicate=2, shard=1)
        return tape.weighted(_two_dimensional(tape.weighted(sizes)))
    return Mesh(shard=tape.weighted(sizes))


def _two_dimensional(size: int) -> list[tuple[Mesh, int]]:
    shapes = [(Mesh(replicate=n, shard=size // n), 6) for n in range(2, size) if size % n == 0]
    return [*shapes, (Mesh(replicate=1, shard=size), 1), (Mesh(replicate=size, shard=1), 1)]
