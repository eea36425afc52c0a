"""Norms: of the features of a row, or of those of a batch."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.dtypes import LOW_PRECISION, Dtype
from fuzzshard.parts.leaf import Biased, DrawingLeaf, Kind, Leaf, Value, draw_bias
from fuzzshard.parts.op import Reasons
from fuzzshard.parts.part import Shape


class _Mixing(Leaf, frozen=True, kw_only=True):
    """Values of half precision that are mixed with parameters in float32 keep theirs, and these
    are not rounded (aten/src/ATen/native/mixed_data_type.h); no kernel of CUDA does so.
    """

    @override
    def result_dtype(
        self, dtype: Dtype | None, own: set[Dtype], *, on_cuda: bool = False
    ) -> Dtype | None:
        if own == {"float32"} and dtype in LOW_PRECISION and not on_cuda:
            return dtype
        return super().result_dtype(dtype, own)


class LayerNorm(_Mixing, Biased, tag="layer_norm", frozen=True, kw_only=True):
    """``nn.LayerNorm(width, bias=bias)``."""

    bias: bool = True

    complexity, noun, prefix = 10, "LayerNorm", "norm"
    styles = ("sequence", "dtensor")
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
    styles = ("sequence", "dtensor")
    kinds = (Kind("rms_norm", "an nn.RMSNorm", 3, lambda d: RMSNorm(), role="norm"),)

    @override
    def constructor(self, width: int) -> str:
        return f"nn.RMSNorm({width})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return {"weight": (width,)}

    @override
    def result_dtype(
        self, dtype: Dtype | None, own: set[Dtype], *, on_cuda: bool = False
    ) -> Dtype | None:
        return dtype


def _draw(drawing: DrawingLeaf) -> GroupNorm:
    divisors = [n for n in (1, 2, 4, 3) if drawing.width % n == 0]
    return GroupNorm(groups=drawing.tape.pick(divisors))


class GroupNorm(_Mixing, tag="group_norm", frozen=True, kw_only=True):
    """``nn.GroupNorm(groups, width)``: normalizes each row by itself, a group of features over the
    whole sequence. ``parallelize_module`` has no style for it.
    """

    groups: int = 1

    complexity, noun, prefix = 9, "GroupNorm", "norm"
    takes = ("channels",)
    kinds = (
        Kind("group_norm", "an nn.GroupNorm", 12, _draw),
        Kind(
            "group_norm_of_several",
            "an nn.GroupNorm of several groups",
            of=lambda leaf, width: leaf.groups > 1,
        ),
    )

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
    def misfits(self, path: str, value: Value, seq: int) -> Reasons:
        yield from super().misfits(path, value, seq)
        if self.groups < 1 or value.size % self.groups:
            yield (
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
    def simpler(self) -> Leaf:
        return GroupNorm()


class BatchNorm(Leaf, tag="batch_norm", frozen=True, kw_only=True):
    """``nn.BatchNorm1d(width)``: buffers that every training forward changes."""

    complexity, noun, prefix = 13, "BatchNorm1d", "bn"
    buffers = "updated"
    mixes_buffers = False
    takes = ("channels",)
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
