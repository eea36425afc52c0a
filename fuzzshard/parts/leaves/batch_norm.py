"""``nn.BatchNorm1d``."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from fuzzshard.parts.leaf import Kind, Leaf
from fuzzshard.parts.part import Shape


class BatchNorm(Leaf, tag="batch_norm", frozen=True, kw_only=True):
    """``nn.BatchNorm1d(width)``: buffers that every training forward changes."""

    complexity: ClassVar[int] = 13
    noun: ClassVar[str] = "BatchNorm1d"
    prefix: ClassVar[str] = "bn"
    is_batch_norm: ClassVar[bool] = True
    takes_patches: ClassVar[bool] = False
    kinds: ClassVar[tuple[Kind, ...]] = (
        Kind("batch_norm", "an nn.BatchNorm1d: buffers", 4, lambda d: BatchNorm()),
    )

    @override
    def constructor(self, width: int) -> str:
        return f"nn.BatchNorm1d({width})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return {"weight": (width,), "bias": (width,)}

    @override
    def least_rows(self, width: int, seq: int) -> int:
        return 1 if seq > 1 else 2

    @override
    def features_second(self, seq: int) -> bool:
        return seq > 0
