"""``nn.Embedding``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.leaf import Kind, Leaf, Value
from fuzzshard.parts.op import Reasons
from fuzzshard.parts.part import Shape


class Embedding(Leaf, tag="embedding", frozen=True, kw_only=True):
    """``nn.Embedding(vocab, dim)``; its argument is an integer input with values below
    ``vocab``.
    """

    vocab: int
    dim: int

    complexity, noun, prefix = 14, "Embedding", "embed"
    sizes = ("vocab", "dim")
    styles = ("rowwise", "colwise", "dtensor")
    takes = ("ids",)
    kinds = (
        Kind(
            "embedding",
            "an nn.Embedding",
            draw=lambda d: Embedding(vocab=d.width, dim=d.out),
            role="ids",
        ),
    )

    @override
    def constructor(self, width: int) -> str:
        return f"nn.Embedding({self.vocab}, {self.dim})"

    @override
    def text(self, width: int) -> str:
        return f"Embedding({self.vocab} ids → {self.dim})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return {"weight": (self.vocab, self.dim)}

    @override
    def misfits(self, path: str, value: Value, seq: int) -> Reasons:
        if not value.ids or value.size > self.vocab:
            yield f"embedding {path!r} of {self.vocab} rows is called with {value}", "feed it ids"

    @override
    def result(self, value: Value) -> Value:
        return Value(self.dim)

    @override
    def example(self, value: Value) -> Value:
        return Value(self.vocab, ids=True)

    @override
    def result_dtype(
        self, dtype: Dtype | None, own: set[Dtype], *, on_cuda: bool = False
    ) -> Dtype | None:
        return next(iter(own))
