"""Along which dimension the parameters of a wrap group are sharded."""

from __future__ import annotations

from fuzzshard.case.case import WrapGroup
from fuzzshard.case.leaves import Shape


def shard_dim(group: WrapGroup, shape: Shape) -> int:
    """The dimension that ``group`` shards a parameter of this shape along; the first of the largest."""
    match group.shard_dim:
        case "first":
            return 0
        case "last":
            return len(shape) - 1
        case "largest":
            return shape.index(max(shape))
