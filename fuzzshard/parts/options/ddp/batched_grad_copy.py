"""``batched_grad_copy``."""

from __future__ import annotations

from fuzzshard.parts.options.ddp import DDPFlag


class BatchedGradCopy(DDPFlag):
    """Gradients are copied into a bucket together."""

    name, place, percent = "batched_grad_copy", 6, 30
