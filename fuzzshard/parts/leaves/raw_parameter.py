"""A module that owns an ``nn.Parameter`` directly."""

from __future__ import annotations

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.dtypes import Dtype, promote
from fuzzshard.parts.leaf import Kind, Leaf
from fuzzshard.parts.part import Shape

_SCALE = """
class Scale(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * self.weight
"""

_MATRIX = """
class Matrix(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(dim))

    def forward(self, x):
        return x @ self.weight
"""

_CUSTOM = """
class Custom(nn.Module):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x * weight, x + weight

        @staticmethod
        def backward(ctx, of_product, of_sum):
            x, weight = ctx.saved_tensors
            of_weight = of_product * x + of_sum
            return of_product * weight + of_sum, of_weight.flatten(0, -2).sum(0)

    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        product, total = self.Function.apply(x, self.weight)
        return product + total
"""


class RawParameter(Leaf, tag="raw_parameter", frozen=True, kw_only=True):
    """A module that owns ``nn.Parameter`` s directly: ``x * weight`` or, with ``matrix``, ``x @
    weight``; with ``custom``, ``x * weight + (x + weight)`` by a ``torch.autograd.Function``.
    """

    matrix: bool = False
    custom: bool = False

    complexity, noun, prefix = 5, "plain parameter", "scale"
    helpers = (_SCALE, _MATRIX, _CUSTOM)
    kinds = (
        Kind(
            "raw_parameter",
            "a module that owns a vector nn.Parameter",
            6,
            lambda d: RawParameter(custom=d.tape.chance(35)),
            exact=True,
            of=lambda leaf, width: not leaf.matrix,
        ),
        Kind(
            "custom_function",
            "a torch.autograd.Function with a parameter and two outputs",
            of=lambda leaf, width: leaf.custom and not leaf.matrix,
        ),
        Kind(
            "raw_matrix",
            "a module that owns a matrix nn.Parameter",
            7,
            lambda d: RawParameter(matrix=True),
            exact=True,
            of=lambda leaf, width: leaf.matrix,
        ),
    )

    @override
    def constructor(self, width: int) -> str:
        name = "Matrix" if self.matrix else "Custom" if self.custom else "Scale"
        return f"{name}({width})"

    @override
    def text(self, width: int) -> str:
        custom = " + x + weight, a Function" if self.custom else ""
        return f"RawParameter({'x @ weight' if self.matrix else 'x * weight' + custom})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return {"weight": (width, width) if self.matrix else (width,)}

    @override
    def result_dtype(
        self, dtype: Dtype | None, own: set[Dtype], *, on_cuda: bool = False
    ) -> Dtype | None:
        if self.matrix or dtype is None:
            return super().result_dtype(dtype, own)
        return promote(dtype, next(iter(own)))

    @override
    def simpler(self) -> Leaf:
        return replace(self, custom=False)
