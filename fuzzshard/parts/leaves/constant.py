"""A module that owns a buffer which is in no state dict."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import leaves
from fuzzshard.parts.leaf import Kind, Leaf

_FACTORS = """
class Factors(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("factors", torch.arange(dim) % 2 + 1.0, persistent=False)

    def forward(self, x):
        return x * self.factors.to(x.dtype)
"""


class Constant(Leaf, tag="constant", frozen=True, kw_only=True):
    """``x * factors``, of a buffer with ``persistent=False``, as rotary embeddings have: "this
    buffer will not be a part of this module's state_dict" (``Module.register_buffer``).
    """

    complexity, noun, prefix = 11, "constant", "constant"
    has_parameters = False
    buffers = "constant"
    helpers = (_FACTORS,)
    kinds = (
        Kind(
            "constant",
            "a module with a buffer that is in no state dict",
            15,
            lambda d: Constant(),
            exact=True,
        ),
    )

    @property
    @override
    def hides_buffers(self) -> bool:
        return True

    @override
    def constructor(self, width: int) -> str:
        return f"Factors({width})"

    @override
    def text(self, width: int) -> str:
        return "Constant(x * factors)"

    @override
    def simpler(self) -> Leaf:
        return leaves.SIMPLEST
