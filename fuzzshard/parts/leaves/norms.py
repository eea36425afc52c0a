"""Norms: of the features of a row, or of those of a batch."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.leaf import Biased, DrawingLeaf, Kind, Leaf, Value, draw_bias
from fuzzshard.parts.part import Shape


class LayerNorm(Biased, tag="layer_norm", frozen=True, kw_only=True):
    """``nn.LayerNorm(width, bias=bias)``."""

    bias: bool = True

    complexity, noun, prefix = 10, "LayerNorm", "norm"
    styles = ("sequence",)
    mixes_dtypes = True
    kinds = (
        Kind(
            "layer_norm",
            "an nn.LayerNorm",
            2,
            lambda d: LayerNorm(bias=draw_bias(d)),
            role="norm",
        ),
    )

    @override
    def constructor(self, width: int) -> str:
        return f"nn.LayerNorm({width}{self.no_bias})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return self.with_bias(weight=(width,))


class RMSNorm(Leaf, tag="rms_norm", frozen=True, kw_only=True):
    """``nn.RMSNorm(width)``."""

    complexity, noun, prefix = 8, "RMSNorm", "norm"
    styles = ("sequence",)
    kinds = (Kind("rms_norm", "an nn.RMSNorm", 3, lambda d: RMSNorm(), role="norm"),)

    @override
    def constructor(self, width: int) -> str:
        return f"nn.RMSNorm({width})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return {"weight": (width,)}

    @override
    def result_dtype(self, dtype: Dtype | None, own: set[Dtype]) -> Dtype | None:
        return dtype


def _draw(drawing: DrawingLeaf) -> GroupNorm:
    divisors = [n for n in (1, 2, 4, 3) if drawing.width % n == 0]
    return GroupNorm(groups=drawing.tape.pick(divisors))


class GroupNorm(Leaf, tag="group_norm", frozen=True, kw_only=True):
    """``nn.GroupNorm(groups, width)``: normalizes each row by itself, a group of features over the
    whole sequence. ``parallelize_module`` has no style for it.
    """

    groups: int = 1

    complexity, noun, prefix = 9, "GroupNorm", "norm"
    takes_patches = False
    mixes_dtypes = True
    kinds = (Kind("group_norm", "an nn.GroupNorm", 12, _draw),)
    more_features = {"group_norm_of_several": "an nn.GroupNorm of several groups"}

    @property
    @override
    def extra_width(self) -> int:
        return self.groups - 1

    @override
    def constructor(self, width: int) -> str:
        return f"nn.GroupNorm({self.groups}, {width})"

    @override
    def text(self, width: int) -> str:
        return f"GroupNorm({width}, groups={self.groups})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return {"weight": (width,), "bias": (width,)}

    @override
    def check(self, path: str, value: Value, seq: int) -> None:
        super().check(path, value, seq)
        if self.groups < 1 or value.size % self.groups:
            raise InvalidCase(
                f"{path!r}: width {value.size} is no multiple of {self.groups} groups",
                "change groups",
            )

    @override
    def least_rows(self, width: int, seq: int) -> int:
        """Return what ``group_norm`` in torch/nn/functional.py does not refuse with "Expected more
        than 1 value per channel when training", in which it counts rows too.
        """
        return 0 if width // self.groups * max(seq, 1) > 1 else 2

    @override
    def features_second(self, seq: int) -> bool:
        return seq > 0

    @override
    def features(self, width: int) -> Iterator[str]:
        if self.groups > 1:
            yield "leaf:group_norm_of_several"

    @override
    def simpler(self) -> Leaf:
        return GroupNorm()

    @override
    def with_width(self, width: int) -> GroupNorm:
        return self if width % self.groups == 0 else replace(self, groups=1)


class BatchNorm(Leaf, tag="batch_norm", frozen=True, kw_only=True):
    """``nn.BatchNorm1d(width)``: buffers that every training forward changes."""

    complexity, noun, prefix = 13, "BatchNorm1d", "bn"
    buffers = "statistics"
    takes_patches = False
    kinds = (
        Kind(
            "batch_norm",
            "an nn.BatchNorm1d: buffers",
            4,
            lambda d: BatchNorm(),
            excluded_by=("precision",),  # buffers keep their dtype
        ),
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
