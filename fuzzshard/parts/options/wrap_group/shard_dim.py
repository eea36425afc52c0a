"""``shard_placement_fn``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.option import DrawingGroups, Reasons, Told
from fuzzshard.parts.options.wrap_group import GroupOption, WrapGroup
from fuzzshard.parts.part import Shape


class ShardDim(GroupOption):
    """Which dim of every parameter is sharded: the first, the last, or the largest.

    "If sharding on a nonzero dim, we currently require even sharding" (``fully_shard``).
    """

    name, place = "shard_dim", 1
    extension = Choice(
        "shard_dim", 18, place=5, excluded_by=("tensor",), brings=("save_load", "hsdp")
    )
    wants_even = True
    texts = {
        "last": "shard_placement_fn=lambda p: Shard(-1)",
        "largest": "shard_placement_fn=lambda p: "
        "Shard(d) if (d := p.shape.index(max(p.shape))) else None",
    }
    prefix = "shard:"
    meanings = {
        "shard:last": "parameters sharded along their last dim",
        "shard:largest": "parameters sharded along their largest dim",
    }

    @override
    def misfits(self, value: str, told: Told) -> Reasons:
        if value == self.default:
            return
        shard = told.case.mesh.shard
        for fqn, shape in told.parameters.items():
            if told.is_planned(fqn):
                yield f"tensor parallel {fqn!r} is in a group with a {self.name}", 'use "first"'
            if not _is_even(told.group, shape, shard):
                evenly = f"evenly over {shard} ranks on dim {told.group.dim_of(shape)}"
                yield (
                    f"{fqn!r} {list(shape)} cannot be sharded {evenly}",
                    "use sizes that the shard axis divides",
                )

    @override
    def draw(self, drawing: DrawingGroups) -> Callable[[int, Any], Any]:
        case = drawing.case

        def drawn(index: int, present: str) -> str:
            if case.tensor_parallel:
                return present
            value = drawing.tape.pick(("last", "largest"))
            shapes = drawing.told(case.wrap, index).parameters.values()
            group = replace(case.wrap[index], shard_dim=value)
            even = all(_is_even(group, shape, case.mesh.shard) for shape in shapes)
            return value if even else present

        return drawn


def _is_even(group: WrapGroup, shape: Shape, shard: int) -> bool:
    dim = group.dim_of(shape)
    return not dim or shape[dim] % shard == 0
