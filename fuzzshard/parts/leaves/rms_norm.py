"""``nn.RMSNorm``."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.leaf import Kind, Leaf, Style
from fuzzshard.parts.part import Shape


class RMSNorm(Leaf, tag="rms_norm", frozen=True, kw_only=True):
    """``nn.RMSNorm(width)``."""

    complexity: ClassVar[int] = 8
    noun: ClassVar[str] = "RMSNorm"
    prefix: ClassVar[str] = "norm"
    styles: ClassVar[tuple[Style, ...]] = ("sequence",)
    is_norm: ClassVar[bool] = True
    kinds: ClassVar[tuple[Kind, ...]] = (
        Kind("rms_norm", "an nn.RMSNorm", 3, lambda d: RMSNorm()),
    )

    @override
    def constructor(self, width: int) -> str:
        return f"nn.RMSNorm({width})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return {"weight": (width,)}

    @override
    def result_dtype(self, dtype: Dtype | None, own: set[Dtype]) -> Dtype | None:
        return dtype
