"""A mixture of experts, each a matrix of one grouped weight."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.leaf import DrawingLeaf, Kind, Leaf, Value
from fuzzshard.parts.op import Reasons
from fuzzshard.parts.part import Shape

_EXPERTS = """
class GroupedExperts(nn.Module):
    def __init__(self, experts, dim, out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, dim, out) / dim)

    def forward(self, rows, counts):  # rows in the order of their experts
        w = self.weight
        w = w.to_local() if hasattr(w, "to_local") else w
        return torch.cat([part @ expert for part, expert in zip(rows.split(counts), w)])


class Experts(nn.Module):
    def __init__(self, dim, out, experts, idle=0):
        super().__init__()
        self.num, self.used = experts, experts - idle
        self.grouped = GroupedExperts(experts, dim, out)

    def forward(self, x):  # rows take turns with the experts that are used
        rows = x.flatten(0, -2)
        order = (torch.arange(len(rows), device=x.device) % self.used).argsort(stable=True)
        counts = [len(range(e, len(rows), self.used)) for e in range(self.used)]
        out = self.grouped(rows[order], counts + [0] * (self.num - self.used))
        return out[order.argsort().view(x.shape[:-1])]  # which is no view
"""


def _draw(drawing: DrawingLeaf) -> Experts:
    num = -(-drawing.tape.pick((2, 4, 3)) // drawing.sharing) * drawing.sharing
    return Experts(out=drawing.out, experts=num, idle=drawing.tape.chance(40))


class Experts(Leaf, tag="experts", frozen=True, kw_only=True):
    """A mixture of ``experts`` matrices to ``out`` features, in one weight (experts, width, out).

    The router goes by the place of a row alone, so it is the same in every precision, and small
    integers stay such. An ``idle`` expert, the last one, never gets a row; where there are fewer
    rows than experts, others get none either.
    """

    out: int
    experts: int = 2
    idle: bool = False

    complexity, noun, prefix = 21, "mixture of experts", "moe"
    sizes = ("out", "experts")
    inner = {"experts": "grouped"}
    helpers = (_EXPERTS,)
    kinds = (
        Kind(
            "experts",
            "a mixture of experts",
            draw=_draw,
            exact=True,
            resizes=True,
            role="experts",
        ),
        Kind("idle_expert", "an expert that gets no row", of=lambda leaf, width: leaf.idle),
    )

    @override
    def constructor(self, width: int) -> str:
        return f"Experts({width}, {self.out}, {self.experts}{', idle=1' if self.idle else ''})"

    @override
    def text(self, width: int) -> str:
        idle = ", one idle" if self.idle else ""
        return f"{self.experts} experts({width} → {self.out}{idle})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        return {"grouped.weight": (self.experts, width, self.out)}

    @override
    def misfits(self, path: str, value: Value, seq: int) -> Reasons:
        yield from super().misfits(path, value, seq)
        if self.experts <= self.idle:
            yield f"{path!r} has no expert that gets rows", "give it more experts"

    @override
    def result(self, value: Value) -> Value:
        return dataclasses.replace(value, size=self.out)

    @override
    def simpler(self) -> Experts:
        return replace(self, idle=False)
