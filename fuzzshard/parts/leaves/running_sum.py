"""A module whose forwards put another tensor in the place of its buffer."""

from __future__ import annotations

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.leaf import Kind, Leaf

_RUNNING_SUM = """
class RunningSum(nn.Module):
    def __init__(self, dim, persistent=True):
        super().__init__()
        self.register_buffer("running", torch.ones(dim), persistent=persistent)

    def forward(self, x):
        if self.training and not torch.is_inference_mode_enabled():
            rows = x.detach().flatten(0, -2).to(self.running.dtype)
            self.running = self.running * 0.5 + rows.sum(0) * 0.125
        return x + self.running.to(x.dtype)
"""


class RunningSum(Leaf, tag="running_sum", frozen=True, kw_only=True):
    """``x + running``, where a forward in training assigns ``self.running`` anew. Who keeps the
    tensor that was the buffer keeps an old one (github.com/pytorch/pytorch/issues/63916).

    The sum is of the rows that this rank has, so that ranks differ unless their buffers are
    synchronised. DDP alone does that: ``broadcast_buffers`` "enables syncing (broadcasting)
    buffers of the module at beginning of the forward function". With ``persistent=False`` it is
    in no state dict, and a model that is built anew begins with ones. Sums of small integers are
    halved exactly.
    """

    persistent: bool = True

    complexity, noun, prefix = 23, "running sum", "running"
    has_parameters = False
    buffers = "updated"
    helpers = (_RUNNING_SUM,)
    kinds = (
        Kind(
            "running_sum",
            "a module that assigns its buffer in every forward",
            16,
            lambda d: RunningSum(persistent=not d.tape.chance(50)),
            exact=True,
        ),
        Kind(
            "unsaved_running_sum",
            "the same, with a buffer that is in no state dict",
            of=lambda leaf, width: not leaf.persistent,
        ),
    )

    @property
    @override
    def hides_buffers(self) -> bool:
        return not self.persistent

    @override
    def constructor(self, width: int) -> str:
        return f"RunningSum({width}{'' if self.persistent else ', persistent=False'})"

    @override
    def simpler(self) -> Leaf:
        return replace(self, persistent=True)
