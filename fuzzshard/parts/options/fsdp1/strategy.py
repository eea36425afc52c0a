"""``sharding_strategy``."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from fuzzshard.parts.option import Case, DrawingFSDP1, Tape
from fuzzshard.parts.options.fsdp1 import FSDP1Option, shards


class Strategy(FSDP1Option):
    """What is sharded, and when it is resharded."""

    name, place, argument = "strategy", 0, 0
    texts = {
        "shard_grad_op": "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP",
        "no_shard": "sharding_strategy=ShardingStrategy.NO_SHARD",
        "hybrid_shard": "sharding_strategy=ShardingStrategy.HYBRID_SHARD",
        "hybrid_shard_zero2": "sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2",
    }
    traits = {
        "no_shard": ("replicates",),
        "hybrid_shard": ("hybrid", "takes_mesh"),
        "hybrid_shard_zero2": ("hybrid", "takes_mesh"),
    }
    meanings = {
        "fsdp1:full_shard": "FULL_SHARD",
        "fsdp1:shard_grad_op": "SHARD_GRAD_OP",
        "fsdp1:no_shard": "NO_SHARD",
        "fsdp1:unsharded": "NO_SHARD, or a strategy that becomes NO_SHARD as it shards over one "
        "rank",
        "fsdp1:hybrid": "HYBRID_SHARD or _HYBRID_SHARD_ZERO2",
        "fsdp1:hybrid_shard": "HYBRID_SHARD",
        "fsdp1:hybrid_shard_zero2": "_HYBRID_SHARD_ZERO2",
    }

    @override
    def draw(self, drawing: DrawingFSDP1) -> str:
        hybrid = drawing.case.mesh.replicate is not None
        drawn: str = drawing.tape.weighted(
            (
                *(("full_shard", 5), ("shard_grad_op", 4), ("no_shard", 3)),
                *((("hybrid_shard", 5), ("hybrid_shard_zero2", 4)) if hybrid else ()),
            )
        )
        return drawn

    @override
    def draw_for_orders(self, tape: Tape) -> str:
        return "shard_grad_op" if tape.chance(50) else "full_shard"

    @override
    def features(self, value: str, case: Case) -> Iterator[str]:
        yield f"fsdp1:{value}"
        if not shards(case):
            yield "fsdp1:unsharded"
        if "hybrid" in self.traits.get(value, ()):
            yield "fsdp1:hybrid"
