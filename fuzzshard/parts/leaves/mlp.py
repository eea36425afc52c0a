"""A two-layer perceptron."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import leaves
from fuzzshard.parts.leaf import Biased, Kind, Leaf, draw_bias
from fuzzshard.parts.part import Shape

_MLP = """
class MLP(nn.Module):
    def __init__(self, dim, hidden, bias=True):
        super().__init__()
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.down = nn.Linear(hidden, dim, bias=bias)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))
"""


class MLP(Biased, tag="mlp", frozen=True, kw_only=True):
    """``Linear(width, hidden) -> ReLU -> Linear(hidden, width)``."""

    hidden: int
    bias: bool = True

    complexity, noun, prefix = 17, "MLP", "mlp"
    sizes = ("hidden",)
    helpers = (_MLP,)
    kinds = (
        Kind(
            "mlp",
            "a two-layer perceptron",
            8,
            lambda d: MLP(hidden=d.tape.pick(d.widths), bias=draw_bias(d)),
            exact=True,
        ),
    )

    @override
    def constructor(self, width: int) -> str:
        return f"MLP({width}, {self.hidden}{self.no_bias})"

    @override
    def text(self, width: int) -> str:
        return f"MLP({width} → {self.hidden} → {width}{self.no_bias})"

    @override
    def parameters(self, width: int) -> dict[str, Shape]:
        up, down = self.apart(width).values()
        shapes = {f"up.{name}": shape for name, shape in up.parameters(width).items()}
        return shapes | {
            f"down.{name}": shape for name, shape in down.parameters(self.hidden).items()
        }

    @override
    def apart(self, width: int) -> dict[str, Leaf]:
        return {
            "up": leaves.affine(self.hidden, bias=self.bias),
            "down": leaves.affine(width, bias=self.bias),
        }
