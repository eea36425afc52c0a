"""``lazy_bucket_allocation``."""

from __future__ import annotations

from fuzzshard.parts.options.ddp import DDPFlag


class LazyBucketAllocation(DDPFlag):
    """Buckets are allocated when they are first used."""

    name, place, percent = "lazy_bucket_allocation", 7, 25
