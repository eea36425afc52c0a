"""``nn.Dropout``."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from fuzzshard.parts import leaves
from fuzzshard.parts.leaf import Kind, Leaf


class Dropout(Leaf, tag="dropout", frozen=True, kw_only=True):
    """``nn.Dropout(p)``; the generator of masks is seeded for each forward by (case seed, op,
    rank).
    """

    p: float = 0.5

    complexity: ClassVar[int] = 12
    noun: ClassVar[str] = "Dropout"
    prefix: ClassVar[str] = "dropout"
    has_parameters: ClassVar[bool] = False
    is_dropout: ClassVar[bool] = True
    kinds: ClassVar[tuple[Kind, ...]] = (
        Kind("dropout", "an nn.Dropout", 10, lambda d: Dropout(p=0.5)),
    )

    @property
    @override
    def drops(self) -> bool:
        return self.p > 0

    @override
    def constructor(self, width: int) -> str:
        return f"nn.Dropout({self.p})"

    @override
    def simpler(self) -> Leaf:
        return leaves.SIMPLEST
