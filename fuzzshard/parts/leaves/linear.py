"""``nn.Linear``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.leaf import Kind, Projection
from fuzzshard.parts.part import Shape


class Linear(Projection, tag="linear", frozen=True, kw_only=True):
    """``nn.Linear(inferred, out, bias=bias)``."""

    complexity, noun, prefix = 2, "Linear", "linear"
    styles = ("colwise", "rowwise")
    kinds = (
        Kind(
            "linear",
            "an nn.Linear with a bias",
            0,
            lambda d: Linear(out=d.out),
            exact=True,
            resizes=True,
            of=lambda leaf, width: leaf.bias,
        ),
        Kind(
            "linear_no_bias",
            "an nn.Linear without a bias",
            1,
            lambda d: Linear(out=d.out, bias=False),
            exact=True,
            resizes=True,
            of=lambda leaf, width: not leaf.bias,
        ),
    )

    @override
    def constructor(self, width: int) -> str:
        return f"nn.Linear({width}, {self.out}{self.no_bias})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return self.with_bias(weight=(self.out, width))
