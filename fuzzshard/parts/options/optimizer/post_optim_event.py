"""``FSDPModule.set_post_optim_event``."""

from __future__ import annotations

from fuzzshard.parts.op import Choice
from fuzzshard.parts.options.optimizer import OptimizerOption


class PostOptimEvent(OptimizerOption):
    """Whether an event is recorded after every step and handed to the FSDP root."""

    name, extension = "post_optim_event", Choice("post_optim_event", 8, 2)
    traits = {True: ("hands_over_event",)}
    meanings = {"optimizer:post_optim_event": "an event after every step, handed to the FSDP root"}
