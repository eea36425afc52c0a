"""``replicate`` on the machinery of ``fully_shard``."""

from __future__ import annotations

from typing import ClassVar

from fuzzshard.engines.fully_shard.engine import FullyShard


class ReplicateWithFSDP(FullyShard):
    """``fully_shard`` on one axis of replicas."""

    name: ClassVar[str] = "replicate_with_fsdp"


ENGINE = ReplicateWithFSDP
