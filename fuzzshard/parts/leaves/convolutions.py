"""Convolutions: along a sequence, and over patches of an image."""

from __future__ import annotations

import math

from typing_extensions import override

from fuzzshard.parts.leaf import Biased, DrawingLeaf, Kind, Projection, Value, draw_bias
from fuzzshard.parts.op import Reasons
from fuzzshard.parts.part import Shape


class Conv1d(Projection, tag="conv1d", frozen=True, kw_only=True):
    """``nn.Conv1d(width, out, 3, padding=1)`` over the sequence axis; needs ``Inputs.seq >=
    1``.
    """

    complexity, noun, prefix = 15, "Conv1d", "conv"
    takes = ("sequence", "channels")
    kinds = (
        Kind(
            "conv1d",
            "an nn.Conv1d",
            5,
            lambda d: Conv1d(out=d.out, bias=draw_bias(d)),
            exact=True,
            resizes=True,
        ),
        Kind(
            "conv1d_of_one",
            "an nn.Conv1d with one input channel",
            of=lambda leaf, width: width == 1,
        ),
    )

    @override
    def constructor(self, width: int) -> str:
        return f"nn.Conv1d({width}, {self.out}, 3, padding=1{self.no_bias})"

    @override
    def text(self, width: int) -> str:
        return f"Conv1d({width} → {self.out}, kernel 3{self.no_bias})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return self.with_bias(weight=(self.out, width, 3))


_PATCHES = """
class Patches(nn.Conv2d):
    def forward(self, x):
        side = int((x.shape[1] // self.in_channels) ** 0.5)
        images = x.view(-1, self.in_channels, side, side)
        return super().forward(images).flatten(2).transpose(1, 2)
"""


def _draw(drawing: DrawingLeaf) -> Conv2d:
    """Of three channels where the size of the image allows it."""
    channels = 1 if drawing.width % 3 else 3
    side = math.isqrt(drawing.width // channels)
    kernel = drawing.tape.pick([k for k in (1, 2, side) if side % k == 0])
    return Conv2d(channels=channels, kernel=kernel, out=drawing.out, bias=draw_bias(drawing))


class Conv2d(Biased, tag="conv2d", frozen=True, kw_only=True):
    """``nn.Conv2d(channels, out, kernel, stride=kernel)`` over a square image given as its
    features.

    Its argument has ``channels * side * side`` features, ``kernel`` divides ``side``; its result
    has one row of ``out`` features for each patch: ``conv(image).flatten(2).transpose(1, 2)``.
    Needs ``Inputs.seq == 0``.
    """

    channels: int
    kernel: int
    out: int
    bias: bool = True

    complexity, noun, prefix = 16, "Conv2d", "patch"
    helpers = (_PATCHES,)
    kinds = (
        Kind(
            "conv2d",
            "an nn.Conv2d that cuts an image into patches",
            draw=_draw,
            role="images",
            excluded_by=("pipelining", "context_parallel"),
        ),
    )

    @override
    def constructor(self, width: int) -> str:
        return (
            f"Patches({self.channels}, {self.out}, {self.kernel}, "
            f"stride={self.kernel}{self.no_bias})"
        )

    @override
    def text(self, width: int) -> str:
        kernel = f"kernel {self.kernel}, stride {self.kernel}"
        return f"Conv2d({self.channels} → {self.out}, {kernel}{self.no_bias})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return self.with_bias(weight=(self.out, self.channels, self.kernel, self.kernel))

    @override
    def misfits(self, path: str, value: Value, seq: int) -> Reasons:
        yield from super().misfits(path, value, seq)
        if min(self.channels, self.kernel) < 1:
            yield (
                f"{path!r} has {self.channels} channels and a kernel of {self.kernel}",
                "use at least 1",
            )
        side = self._side(value)
        if self.channels * side * side != value.size or side % self.kernel or value.patches:
            yield (
                f"{path!r} is called with {value}, no square image of {self.channels} channels "
                f"that {self.kernel} divides",
                "match channels * side * side",
            )
        if seq:
            yield f"{path!r} takes an image, not a sequence of them", "set inputs.seq to 0"

    @override
    def example(self, value: Value) -> Value:
        return Value(self.channels * self.kernel**2)

    def _side(self, value: Value) -> int:
        return math.isqrt(value.size // self.channels)

    @override
    def result(self, value: Value) -> Value:
        return Value(self.out, patches=(self._side(value) // self.kernel) ** 2)
