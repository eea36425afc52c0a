"""A module that owns an ``nn.Parameter`` directly."""

from __future__ import annotations

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


class RawParameter(Leaf, tag="raw_parameter", frozen=True, kw_only=True):
    """A module that owns ``nn.Parameter`` s directly: ``x * weight`` or, with ``matrix``, ``x @
    weight``.
    """

    matrix: bool = False

    complexity, noun, prefix = 5, "plain parameter", "scale"
    helpers = (_SCALE, _MATRIX)
    kinds = (
        Kind(
            "raw_parameter",
            "a module that owns a vector nn.Parameter",
            6,
            lambda d: RawParameter(),
            exact=True,
            of=lambda leaf, width: not leaf.matrix,
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
        return f"{'Matrix' if self.matrix else 'Scale'}({width})"

    @override
    def text(self, width: int) -> str:
        return f"RawParameter({'x @ weight' if self.matrix else 'x * weight'})"

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
