"""``nn.Dropout``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import leaves
from fuzzshard.parts.leaf import Kind, Leaf


class Dropout(Leaf, tag="dropout", frozen=True, kw_only=True):
    """``nn.Dropout(p)``; the generator of masks is seeded for each forward by (case seed, op,
    rank).
    """

    p: float = 0.5

    complexity, noun, prefix = 12, "Dropout", "dropout"
    has_parameters = False
    kinds = (
        # masks are drawn per rank, and tensor-parallel ranks must draw alike; stages draw in
        # another order than one forward after another
        Kind(
            "dropout",
            "an nn.Dropout",
            10,
            lambda d: Dropout(p=0.5),
            excluded_by=("tensor", "pipelining"),
        ),
    )

    @property
    @override
    def drops(self) -> float:
        return self.p

    @override
    def constructor(self, width: int) -> str:
        return f"nn.Dropout({self.p})"

    @override
    def simpler(self) -> Leaf:
        return leaves.SIMPLEST
