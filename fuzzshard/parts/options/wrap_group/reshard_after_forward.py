"""``reshard_after_forward``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from typing_extensions import override

from fuzzshard.parts.option import Reasons, Told
from fuzzshard.parts.options.wrap_group import GroupOption, mesh_size

Value = bool | int | None


class ReshardAfterForward(GroupOption):
    """Whether parameters are resharded after forward, or over how many ranks; None: yes, except
    for an FSDP root.
    """

    name, always_told = "reshard_after_forward", True
    choices = ("reshard_true", "reshard_false", "reshard_int")
    prefix = "reshard:"
    meanings = {
        "reshard:none": "reshard_after_forward=None",
        "reshard:true": "reshard_after_forward=True",
        "reshard:false": "reshard_after_forward=False",
        "reshard:int": "reshard_after_forward=<int>",
    }

    @override
    def arguments(self, value: Value) -> tuple[str, ...]:
        return () if value is None else (f"{self.name}={value}",)

    @override
    def features(self, value: Value) -> Iterator[str]:
        return super().features("int" if mesh_size(value) is not None else value)

    @override
    def means(self, value: Value) -> Mapping[str, str]:
        return {} if mesh_size(value) is None else {"reshard:int": f"{self.name}={value}"}

    @override
    def misfits(self, value: Value, told: Told) -> Reasons:
        size, shard = mesh_size(value), told.case.mesh.shard
        if size is not None and (size < 1 or shard % size):
            yield (
                f"{self.name}={value} does not divide the shard axis of size {shard}",
                ("use a divisor"),
            )
        # ``FSDPParam.to_sharded_post_forward`` (_fsdp_param.py) raises
        elif size is not None and 1 < size < shard and told.parallel:
            yield (
                f"tensor parallel {told.parallel[0]!r} is in a group with {self.name}={value}",
                "use True or False: resharding to a smaller mesh is not supported for DTensor "
                "parameters",
            )

    @override
    def values(self, swarm: Any, shard: int) -> list[tuple[Value, int]]:
        options: list[tuple[Value, int]] = [(None, 3)]
        if "reshard_true" in swarm:
            options.append((True, 3))
        if "reshard_false" in swarm:
            options.append((False, 3))
        if "reshard_int" in swarm:
            divisors = [n for n in range(2, shard) if shard % n == 0]
            options += [(n, 6) for n in divisors] + [(1, 1), (shard, 1)]
        return options

    @override
    def mended(self, value: Value, shard: int, wrapped: frozenset[str]) -> Value:
        size = mesh_size(value)
        return value if size is None else math.gcd(size, shard)
