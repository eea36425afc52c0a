"""Along which dimension the parameters of a wrap group are sharded, and over how many ranks after
forward.
"""

from __future__ import annotations

from fuzzshard.case.case import Mesh, WrapGroup
from fuzzshard.parts.part import Shape


def shard_dim(group: WrapGroup, shape: Shape) -> int:
    """The dimension that ``group`` shards a parameter of this shape along; the first of the
    largest.
    """
    match group.shard_dim:
        case "first":
            return 0
        case "last":
            return len(shape) - 1
        case "largest":
            return shape.index(max(shape))


def goes_to_smaller_mesh(group: WrapGroup, mesh: Mesh) -> bool:
    """Whether an int ``reshard_after_forward`` leaves the group sharded over fewer ranks after
    forward.
    """
    raf = group.reshard_after_forward
    return isinstance(raf, int) and not isinstance(raf, bool) and 1 < raf < mesh.shard
