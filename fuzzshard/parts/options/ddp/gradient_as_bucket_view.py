"""``gradient_as_bucket_view``."""

from __future__ import annotations

from fuzzshard.parts.options.ddp import DDPFlag


class GradientAsBucketView(DDPFlag):
    """Gradients are views of the buckets."""

    name, place, percent = "gradient_as_bucket_view", 2, 35
