"""``nn.BatchNorm1d``."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaf import Kind, Leaf, Value
from fuzzshard.parts.part import Shape


class BatchNorm(Leaf, tag="batch_norm", frozen=True, kw_only=True):
    """``nn.BatchNorm1d(width)``: buffers that every training forward changes."""

    complexity: ClassVar[int] = 13
    noun: ClassVar[str] = "BatchNorm1d"
    prefix: ClassVar[str] = "bn"
    is_batch_norm: ClassVar[bool] = True
    kinds: ClassVar[tuple[Kind, ...]] = (
        Kind("batch_norm", "an nn.BatchNorm1d: buffers", 4, lambda d: BatchNorm()),
    )

    @override
    def constructor(self, width: int) -> str:
        return f"nn.BatchNorm1d({width})"

    @override
    def text(self, width: int) -> str:
        return f"BatchNorm1d({width})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return {"weight": (width,), "bias": (width,)}

    @override
    def check(self, path: str, value: Value, seq: int) -> None:
        super().check(path, value, seq)
        if value.patches:
            raise InvalidCase(
                f"batch norm {path!r} is called with patches", "put it before the convolution"
            )

    @override
    def features_second(self, seq: int) -> bool:
        return seq > 0
