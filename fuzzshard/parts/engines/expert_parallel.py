"""Expert parallelism: experts are sharded over the ranks, and rows go to them."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.engines.fully_shard import FullyShard
from fuzzshard.parts.op import Choice


class ExpertParallel(FullyShard):
    """The shard axis has the experts, and ``fully_shard`` shards them over the other axis alone.

    So torchtitan trains mixtures (torchtitan/models/llama4/parallelize.py).
    """

    name = "expert_parallel"
    title = "expert parallelism with `fully_shard`"
    tag = "expert parallel"
    nicknames = ("ep", "moe")
    meaning = "experts are sharded over an axis of the mesh, and rows go to them"
    choice = Choice(
        "expert_parallel",
        8,
        place=101,
        # what there is no mesh of one axis for, or what experts are not told
        excludes=(
            *("tensor", "meta", "compile", "no_all_reduce"),
            *("alias", "tie", "reshard_int"),
        ),
    )
    shards_experts = True
    wraps_models = "no"
    wraps_blocks = False

    @property
    @override
    def implementation(self) -> str:
        """It calls ``fully_shard`` for every group."""
        return FullyShard.name
