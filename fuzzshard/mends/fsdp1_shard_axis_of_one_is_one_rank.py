"""FSDP1 takes a shard axis of size 1 for a world of one rank.

``_init_core_state`` in ``torch/distributed/fsdp/_init_utils.py`` switches to ``NO_SHARD`` if the
group that it shards over has one rank. ``HYBRID_SHARD`` and ``_HYBRID_SHARD_ZERO2`` also have the
group of the replicas, over which ``NO_SHARD`` does not reduce. So no gradient is averaged and the
replicas drift apart, but each gradient is still divided by their number. Without sharding,
gradients have to be reduced over the replicas.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = (
    "FSDP1 HYBRID_SHARD: gradients are not averaged over replicas when the shard axis has size 1"
)
COMPONENT = "FSDP1"
WEIGHT = "limitation"
CONTRACT = Promise("replicate parameters across nodes", "ShardingStrategy, HYBRID_SHARD")
SETUP = (
    "A job with hybrid sharding runs on nodes with one GPU each. The replicas drift apart, and "
    "nothing says so."
)
WORKAROUND = "Use DDP on such a mesh."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/154888",
        "closed as not planned",
        "FSDP HYBRID_SHARD shard size 1 switching to NO_SHARD gradients not synchronized across "
        "replicas",
        "2026-11-23",
    ),
    Public(
        "https://github.com/verl-project/verl/issues/7493", "closed: the same, found in training"
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._init_utils:_init_core_state",
        """
        sharding_strategy = ShardingStrategy.NO_SHARD
        """,
        """
        if sharding_strategy in HYBRID_SHARDING_STRATEGIES:
            state.process_group = state._inter_node_pg
            state.rank = state.process_group.rank()
            state.world_size = state.process_group.size()
        sharding_strategy = ShardingStrategy.NO_SHARD
        """,
    ),
)
