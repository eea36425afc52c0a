"""``nn.Conv1d``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from typing_extensions import override

from fuzzshard.parts.leaf import Kind, Projection, draw_bias, no_bias, with_bias
from fuzzshard.parts.part import Shape


class Conv1d(Projection, tag="conv1d", frozen=True, kw_only=True):
    """``nn.Conv1d(width, out, 3, padding=1)`` over the sequence axis; needs ``Inputs.seq >=
    1``.
    """

    complexity: ClassVar[int] = 15
    noun: ClassVar[str] = "Conv1d"
    prefix: ClassVar[str] = "conv"
    more_features: ClassVar[Mapping[str, str]] = {
        "conv1d_of_one": "an nn.Conv1d with one input channel"
    }
    needs_sequence: ClassVar[bool] = True
    kinds: ClassVar[tuple[Kind, ...]] = (
        Kind(
            "conv1d",
            "an nn.Conv1d",
            5,
            lambda d: Conv1d(out=d.out, bias=draw_bias(d)),
            exact=True,
            resizes=True,
        ),
    )

    @override
    def constructor(self, width: int) -> str:
        return f"nn.Conv1d({width}, {self.out}, 3, padding=1{no_bias(self.bias)})"

    @override
    def text(self, width: int) -> str:
        return f"Conv1d({width} → {self.out}, kernel 3{no_bias(self.bias)})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return with_bias({"weight": (self.out, width, 3)}, self.bias)

    @override
    def features_second(self, seq: int) -> bool:
        return True

    @override
    def features(self, width: int) -> Iterator[str]:
        if width == 1:
            yield "leaf:conv1d_of_one"
