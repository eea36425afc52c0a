"""``nn.Linear`` with ``nn.utils.parametrizations.weight_norm``."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from fuzzshard.parts.leaf import Kind, Projection, draw_bias, no_bias
from fuzzshard.parts.part import Shape


class WeightNorm(Projection, tag="weight_norm", frozen=True, kw_only=True):
    """``nn.utils.parametrizations.weight_norm(nn.Linear(width, out))``.

    Its parameters belong to a module below it, and every access to ``weight`` computes the weight
    from them. The module gets a class of its own, as it does from ``fully_shard``.
    """

    complexity: ClassVar[int] = 18
    noun: ClassVar[str] = "weight-normalized Linear"
    prefix: ClassVar[str] = "normed"
    kinds: ClassVar[tuple[Kind, ...]] = (
        Kind(
            "weight_norm",
            "an nn.Linear whose weight is parametrized by its norm",
            14,
            lambda d: WeightNorm(out=d.out, bias=draw_bias(d)),
            resizes=True,
        ),
    )

    @override
    def constructor(self, width: int) -> str:
        linear = f"nn.Linear({width}, {self.out}{no_bias(self.bias)})"
        return f"nn.utils.parametrizations.weight_norm({linear})"

    @override
    def text(self, width: int) -> str:
        return f"weight_norm(Linear({width} → {self.out}{no_bias(self.bias)}))"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        shapes: dict[str, Shape] = {"bias": (self.out,)} if self.bias else {}
        return shapes | {
            "parametrizations.weight.original0": (self.out, 1),
            "parametrizations.weight.original1": (self.out, width),
        }
