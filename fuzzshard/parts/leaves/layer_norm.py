"""``nn.LayerNorm``."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.leaf import Kind, Leaf, Style, draw_bias, no_bias, with_bias
from fuzzshard.parts.part import Shape


class LayerNorm(Leaf, tag="layer_norm", frozen=True, kw_only=True):
    """``nn.LayerNorm(width, bias=bias)``."""

    bias: bool = True

    complexity: ClassVar[int] = 10
    noun: ClassVar[str] = "LayerNorm"
    prefix: ClassVar[str] = "norm"
    styles: ClassVar[tuple[Style, ...]] = ("sequence",)
    is_norm: ClassVar[bool] = True
    mixes_dtypes: ClassVar[bool] = True
    kinds: ClassVar[tuple[Kind, ...]] = (
        Kind("layer_norm", "an nn.LayerNorm", 2, lambda d: LayerNorm(bias=draw_bias(d))),
    )

    @property
    @override
    def rank(self) -> int:
        return self.complexity + self.bias

    @override
    def constructor(self, width: int) -> str:
        return f"nn.LayerNorm({width}{no_bias(self.bias)})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return with_bias({"weight": (width,)}, self.bias)

    @override
    def simpler(self) -> LayerNorm:
        return replace(self, bias=False)

    @classmethod
    @override
    def additions(cls, width: int) -> tuple[Leaf, ...]:
        return (cls(),)
