"""When in a training run something is called; these are what schedules and the table of calls
know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Moment = Literal[
    "before_first_forward",
    "forward_to_backward",
    "between_microbatches",
    "backward_to_step",
    "after_step",
    "in_evaluation",
    "after_load",
    "under_no_grad",
]

MOMENTS: Mapping[Moment, str] = {
    "before_first_forward": "before the first forward",
    "forward_to_backward": "between a forward and its backward",
    "between_microbatches": "between a backward and the next microbatch of the same step",
    "backward_to_step": "between the last backward and the step",
    "after_step": "between a step and the next forward with gradients",
    "in_evaluation": "while the model is in eval mode",
    "after_load": "between a load and the next forward",
    "under_no_grad": "while gradients are disabled",
}
"""What each means. Some overlap: a loss may be pending in evaluation."""


class Never(NamedTuple):
    """Why something is not called at a moment.

    With a ``source`` in torch, ``why`` is its quote, which forbids it. Without one, ``why`` is the
    reason for which it cannot be.
    """

    why: str
    source: str = ""


MODIFIED = Never(
    "Modifying the parameters between forward and backward is not supported: the backward "
    "all-gather is not ordered after such writes, so backward may see the old values.",
    "torch/distributed/fsdp/_fully_shard/_fully_shard.py, fully_shard: reshard_after_forward",
)
"""Of what writes to parameters."""

UNSHARDED = Never(
    "After forward, the parameters registered to the module depend on to this: The registered "
    "parameters are the sharded parameters if True; unsharded parameters if False",
    MODIFIED.source,
)
"""Of what reads gradients: those are of the sharded parameters."""
