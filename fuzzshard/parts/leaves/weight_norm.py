"""``nn.Linear`` with ``nn.utils.parametrizations.weight_norm``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.leaf import Kind, Projection, draw_bias
from fuzzshard.parts.part import Shape


class WeightNorm(Projection, tag="weight_norm", frozen=True, kw_only=True):
    """``nn.utils.parametrizations.weight_norm(nn.Linear(width, out))``.

    Its parameters belong to a module below it, and every access to ``weight`` computes the weight
    from them. The module gets a class of its own, as it does from ``fully_shard``.
    """

    complexity, noun, prefix = 18, "weight-normalized Linear", "normed"
    kinds = (
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
        linear = f"nn.Linear({width}, {self.out}{self.no_bias})"
        return f"nn.utils.parametrizations.weight_norm({linear})"

    @override
    def text(self, width: int) -> str:
        return f"weight_norm(Linear({width} → {self.out}{self.no_bias}))"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        shapes: dict[str, Shape] = {"bias": (self.out,)} if self.bias else {}
        return shapes | {
            "parametrizations.weight.original0": (self.out, 1),
            "parametrizations.weight.original1": (self.out, width),
        }
